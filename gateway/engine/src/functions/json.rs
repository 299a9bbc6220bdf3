//! `json_get(text, path)` and `json_get_str|int|float|bool`: one value out of a JSON text.
//!
//! Promise: NULL where the text is null or no JSON, where nothing is at the path, where it is JSON's
//! null or of another kind: nothing is converted. `json_get` gives the value as JSON text. Of equal
//! keys the last one counts. The text is read once, without building what lies beside the path.
//!
//! A path is keys with dots between them and indexes from 0 in brackets, `sensors[2].value`; a key
//! with other characters stands in quotes, `["line.3"]`; a leading `$` may stand.
//! Source: RFC 8259; paths as in RFC 9535 where they name one value.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Which kind of value is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Json,
    Text,
    Int,
    Float,
    Bool,
}

pub(super) fn udfs() -> Vec<ScalarUDF> {
    let udf = |kind| {
        ScalarUDF::new_from_impl(JsonGet {
            kind,
            signature: Signature::any(2, Volatility::Immutable),
        })
    };
    [Kind::Json, Kind::Text, Kind::Int, Kind::Float, Kind::Bool].map(udf).into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonGet {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for JsonGet {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Json => "json_get",
            Kind::Text => "json_get_str",
            Kind::Int => "json_get_int",
            Kind::Float => "json_get_float",
            Kind::Bool => "json_get_bool",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if let Some(other) = arguments.first().filter(|t| !t.is_string() && !t.is_null()) {
            return plan_err!(
                "{}(text, path): text is {other}\nit takes a text that holds JSON",
                self.name()
            );
        }
        Ok(match self.kind {
            Kind::Json | Kind::Text => DataType::Utf8,
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float64,
            Kind::Bool => DataType::Boolean,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [texts, ColumnarValue::Scalar(path)] = args.args.as_slice() else {
            return exec_err!("{}: the path is no constant", self.name());
        };
        let Some(Ok(path)) = path.try_as_str().flatten().map(parse) else {
            return exec_err!("{}: the path cannot be read", self.name());
        };
        let texts = cast(&texts.to_array(args.number_rows)?, &DataType::Utf8)?;
        let texts = texts.as_string::<i32>();
        let values = (0..texts.len())
            .map(|row| (!texts.is_null(row)).then(|| find(texts.value(row), &path)).flatten());
        let array: ArrayRef = match self.kind {
            Kind::Json => Arc::new(
                values
                    .map(|v| v.filter(|v| !v.is_null()).map(|v| v.to_string()))
                    .collect::<StringArray>(),
            ),
            Kind::Text => {
                Arc::new(values.map(|v| v?.as_str().map(str::to_owned)).collect::<StringArray>())
            }
            Kind::Int => Arc::new(values.map(|v| v?.as_i64()).collect::<Int64Array>()),
            Kind::Float => Arc::new(values.map(|v| v?.as_f64()).collect::<Float64Array>()),
            Kind::Bool => Arc::new(values.map(|v| v?.as_bool()).collect::<BooleanArray>()),
        };
        Ok(ColumnarValue::Array(array))
    }
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// Reads a path; `Err` says what is wrong with it.
pub(super) fn parse(path: &str) -> Result<Vec<Step>, String> {
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    let rooted = rest.len() < path.len();
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let quote = inside.chars().next().filter(|c| matches!(c, '"' | '\''));
            let (step, after) = if let Some(quote) = quote {
                let (key, after) = inside[1..].split_once(quote).ok_or("a quote is not closed")?;
                (Step::Key(key.to_owned()), after)
            } else {
                let end = inside.find(']').ok_or("a bracket is not closed")?;
                let index = inside[..end].parse();
                let index = index.map_err(|_| format!("`{}` is no index", &inside[..end]))?;
                (Step::Index(index), &inside[end..])
            };
            steps.push(step);
            rest = after.strip_prefix(']').ok_or("a bracket is not closed")?;
            continue;
        }
        let key = if steps.is_empty() && !rooted {
            rest
        } else {
            rest.strip_prefix('.').ok_or("a dot is missing before a key")?
        };
        let end = key.find(['.', '[']).unwrap_or(key.len());
        if end == 0 {
            return Err("a key is empty".to_owned());
        }
        steps.push(Step::Key(key[..end].to_owned()));
        rest = &key[end..];
    }
    Ok(steps)
}

fn find(text: &str, path: &[Step]) -> Option<Value> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = Seek(path).deserialize(&mut reader).ok()?;
    reader.end().ok()?;
    found
}

/// Walks along a path and passes over everything else.
struct Seek<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        if self.0.is_empty() {
            return serde::Deserialize::deserialize(reader).map(Some);
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<str>>()? {
            match self.0 {
                [Step::Key(wanted), rest @ ..] if *wanted == *key => {
                    found = map.next_value_seed(Seek(rest))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if let [Step::Index(wanted), rest @ ..] = self.0 {
            for _ in 0..*wanted {
                if list.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(None);
                }
            }
            let found = list.next_element_seed(Seek(rest))?.flatten();
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(found);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_path() {
        let text = r#"{ "a": { "b": [10, {"c": "größe"}, null, true], "x.y": -1.5 },
                        "a\u0031": 7, "d": 1, "d": 2, "big": 18446744073709551615 }"#;
        for (path, expected) in [
            ("a.b[0]", Some("10")),
            ("$.a.b[1].c", Some("\"größe\"")),
            ("$['a'].b[3]", Some("true")),
            (r#"a["x.y"]"#, Some("-1.5")),
            ("a.b[2]", Some("null")),
            ("a.b[1]", Some(r#"{"c":"größe"}"#)),
            // An escape in a key is that key.
            ("a1", Some("7")),
            ("d", Some("2")),
            ("big", Some("18446744073709551615")),
            ("a.b[4]", None),
            ("a.b.c", None),
            ("a[0]", None),
            ("d.e", None),
            ("z", None),
        ] {
            let found = find(text, &parse(path).unwrap()).map(|value| value.to_string());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
        assert_eq!(find("[1, 2]", &parse("$").unwrap()).unwrap().to_string(), "[1,2]");
        assert_eq!(find("[[1], [2, 3]]", &parse("[1][1]").unwrap()).unwrap().to_string(), "3");
        for broken in ["", "{", "{\"a\": 1} x", "{\"a\": 1, }", "{'a': 1}", "NaN"] {
            assert_eq!(find(broken, &parse("a").unwrap()), None, "{broken}");
        }
        // Deeper than any message; refused and not a stack overflow.
        let deep = "[".repeat(100_000);
        assert_eq!(find(&deep, &[]), None);
        for (path, message) in [
            ("a..b", "a key is empty"),
            ("a.", "a key is empty"),
            ("a[x]", "`x` is no index"),
            ("a[-1]", "`-1` is no index"),
            ("a[1", "a bracket is not closed"),
            ("a['b]", "a quote is not closed"),
            ("a['b'", "a bracket is not closed"),
            ("a[1]b", "a dot is missing before a key"),
            ("$a", "a dot is missing before a key"),
        ] {
            assert_eq!(parse(path), Err(message.to_owned()), "{path}");
        }
    }
}
