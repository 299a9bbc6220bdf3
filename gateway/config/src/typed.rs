//! From the tree to typed values, as a serde deserializer over nodes.
//!
//! Nothing is coerced: a scalar is what the core schema says, and the types' own visitors take it
//! or refuse it. An error keeps its kind and the path to the node, so that `repair` can name the
//! place, take the value out and go on to the next error.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, Expected, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use crate::path::{Path, Step};
use crate::yaml::{Map, Meaning, Node, Value};

/// Reads a typed value from a node, or the first refusal on the way.
pub(crate) fn read<T: DeserializeOwned>(node: &Node) -> Result<T, Refusal> {
    T::deserialize(FromNode(node)).map_err(|mut refusal| {
        refusal.steps.reverse();
        refusal
    })
}

/// Why a node was refused, and which one.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// From the inside out while the error travels, from the outside in for the caller.
    steps: Vec<Step>,
    pub kind: Kind,
}

/// What was wrong with a node.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A mapping has a key that its type does not know.
    Unknown { field: String, known: &'static [&'static str] },
    /// A mapping lacks a key.
    Missing(&'static str),
    /// A value is of another kind than its type takes.
    Mismatch { found: String, expected: String },
    /// A number is outside the type's range.
    Range { found: String, expected: String },
    /// No such choice.
    Choice { found: String, known: &'static [&'static str] },
    /// A choice is not a mapping with one key.
    Form { message: String, hint: String },
    /// A type refused the value in its own words.
    Value(String),
    /// The node was a choice whose settings were taken out: an error that is known already.
    Known,
}

impl Refusal {
    fn new(kind: Kind) -> Self {
        Self { steps: Vec::new(), kind }
    }

    fn under(mut self, step: impl Into<Step>) -> Self {
        self.steps.push(step.into());
        self
    }

    /// The way to the node that was refused.
    pub(crate) fn path(&self) -> Path {
        Path(self.steps.clone())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Kind::Value(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (found, expected) = (in_words(&found), kind_in_words(&expected.to_string()));
        Self::new(Kind::Mismatch { found, expected })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (found, expected) = (in_words(&found), kind_in_words(&expected.to_string()));
        Self::new(Kind::Range { found, expected })
    }

    fn unknown_variant(variant: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::Choice { found: format!("`{variant}`"), known })
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::new(Kind::Unknown { field: field.to_owned(), known })
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Kind::Missing(field))
    }
}

fn in_words(found: &Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(text) => format!("the text `{text}`"),
        Unexpected::Unit | Unexpected::Option => "empty".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        other => other.to_string(),
    }
}

/// Rust's names of types in the words of a configuration.
fn kind_in_words(expected: &str) -> String {
    let whole = |max: &str| format!("a whole number from 0 to {max}");
    match expected {
        "u8" => whole("255"),
        "u16" => whole("65535"),
        "u32" => whole("4294967295"),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        _ if expected.starts_with("struct ") => "a mapping".to_owned(),
        _ if expected.starts_with("a map") => "a mapping".to_owned(),
        _ => expected.to_owned(),
    }
}

#[derive(Clone, Copy)]
struct FromNode<'a>(&'a Node);

impl FromNode<'_> {
    /// What the node is, for an error.
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.0.value {
            Value::List(_) => Unexpected::Seq,
            Value::Gone => Unexpected::Unit,
            Value::Map(_) => Unexpected::Map,
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => Unexpected::Unit,
                Meaning::Bool(value) => Unexpected::Bool(value),
                Meaning::Signed(value) => Unexpected::Signed(value),
                Meaning::Unsigned(value) => Unexpected::Unsigned(value),
                Meaning::Float(value) => Unexpected::Float(value),
                Meaning::Text(text) => Unexpected::Str(text),
            },
        }
    }
}

impl<'de> Deserializer<'de> for FromNode<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.0.value {
            Value::List(items) => visitor.visit_seq(Items { items, next: 0 }),
            Value::Map(map) => visitor.visit_map(Entries { map, next: 0 }),
            Value::Gone => visitor.visit_unit(),
            Value::Scalar(scalar) => match scalar.meaning() {
                Meaning::Null => visitor.visit_unit(),
                Meaning::Bool(value) => visitor.visit_bool(value),
                Meaning::Signed(value) => visitor.visit_i64(value),
                Meaning::Unsigned(value) => visitor.visit_u64(value),
                Meaning::Float(value) => visitor.visit_f64(value),
                Meaning::Text(text) => visitor.visit_str(text),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    /// Only mappings: derived visitors would also take a list of the fields' values in order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match &self.0.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(Refusal::invalid_type(self.unexpected(), &"a mapping")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match &self.0.value {
            Value::Scalar(scalar) if !self.0.is_null() => {
                visitor.visit_enum(Choice { name: &scalar.text, settings: None })
            }
            Value::Map(Map { entries, .. }) if entries.len() == 1 => visitor
                .visit_enum(Choice { name: &entries[0].key, settings: Some(&entries[0].node) }),
            Value::Map(Map { entries, dropped }) if entries.is_empty() && !dropped.is_empty() => {
                Err(Refusal::new(Kind::Known))
            }
            Value::Map(Map { entries, .. }) if entries.len() > 1 => {
                let keys: Vec<_> = entries.iter().map(|e| e.key.as_str()).collect();
                let message = format!("takes one choice, not {}", crate::similar::list(&keys));
                let hint = format!("one of: {}", crate::similar::list(variants));
                Err(Refusal::new(Kind::Form { message, hint }))
            }
            _ => {
                let found = in_words(&self.unexpected());
                Err(Refusal::new(Kind::Choice { found, known: variants }))
            }
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    items: &'a [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refusal> {
        let gone = |item: &&Node| matches!(item.value, Value::Gone);
        self.next += self.items[self.next..].iter().take_while(gone).count();
        let Some(item) = self.items.get(self.next) else {
            return Ok(None);
        };
        let index = self.next;
        self.next += 1;
        seed.deserialize(FromNode(item)).map(Some).map_err(|e| e.under(index))
    }
}

struct Entries<'a> {
    map: &'a Map,
    next: usize,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refusal> {
        let Some(entry) = self.map.entries.get(self.next) else {
            return Ok(None);
        };
        seed.deserialize(de::value::StrDeserializer::new(&entry.key)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refusal> {
        let entry = &self.map.entries[self.next];
        self.next += 1;
        seed.deserialize(FromNode(&entry.node)).map_err(|e| e.under(entry.key.as_str()))
    }
}

/// A choice: a word alone, or a word with its settings.
struct Choice<'a> {
    name: &'a str,
    settings: Option<&'a Node>,
}

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = Refusal;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Refusal> {
        let variant = seed.deserialize(de::value::StrDeserializer::<Refusal>::new(self.name))?;
        Ok((variant, self))
    }
}

impl Choice<'_> {
    fn form(message: String, hint: String) -> Refusal {
        Refusal::new(Kind::Form { message, hint })
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = Refusal;

    fn unit_variant(self) -> Result<(), Refusal> {
        let name = self.name;
        if self.settings.is_none() {
            return Ok(());
        }
        Err(Self::form(format!("`{name}` has no settings"), format!("write `{name}` alone")))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refusal> {
        let name = self.name;
        let Some(settings) = self.settings else {
            let hint = format!("write `{{ {name}: {{}} }}`, with settings between the braces");
            return Err(Self::form(format!("`{name}` is written with its settings"), hint));
        };
        seed.deserialize(FromNode(settings)).map_err(|e| e.under(name))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Refusal> {
        Err(Refusal::custom("choices with several values are not part of the document"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Refusal> {
        Err(Refusal::custom("choices with fields of their own are not part of the document"))
    }
}
