//! The published JSON schema, made from the types that parse.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

use crate::Document;
use crate::path::{Path, Step};

/// The JSON schema (draft 2020-12) of a document, as pretty text with a line end.
pub fn schema_json() -> String {
    // Sorted here, so that the text does not depend on how serde_json was built for others.
    let sorted = Schema::try_from(sorted(Shape::of::<Document>().0))
        .unwrap_or_else(|_| unreachable!("it was a schema before"));
    let mut text = serde_json::to_string_pretty(&sorted)
        .unwrap_or_else(|_| unreachable!("a schema is plain data"));
    text.push('\n');
    text
}

/// The same value with the keys of all objects in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let entries: BTreeMap<_, _> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

/// A type's schema, to ask it about places in a document.
pub(crate) struct Shape(Value);

impl Shape {
    pub(crate) fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::draft2020_12();
        Self(settings.into_generator().into_root_schema_for::<T>().to_value())
    }

    /// The fields without a default of the mapping at `path`.
    pub(crate) fn required(&self, path: &Path) -> Vec<String> {
        let words = self.at(path).and_then(|schema| self.word(schema, "required"));
        words
            .and_then(Value::as_array)
            .map(|fields| fields.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default()
    }

    /// The sentence about the field at `path`.
    pub(crate) fn description(&self, path: &Path) -> Option<&str> {
        // A field's own sentence stands beside the reference to its type.
        let schema = self.at(path)?;
        schema.get("description").or_else(|| self.word(schema, "description"))?.as_str()
    }

    fn at(&self, path: &Path) -> Option<&Value> {
        path.0.iter().try_fold(&self.0, |schema, step| self.step(schema, step))
    }

    fn step<'a>(&'a self, schema: &'a Value, step: &Step) -> Option<&'a Value> {
        let direct = match step {
            Step::Index(_) => schema.get("items"),
            Step::Key(key) => schema
                .get("properties")
                .and_then(|properties| properties.get(key))
                .or_else(|| schema.get("additionalProperties").filter(|v| v.is_object())),
        };
        direct.or_else(|| self.parts(schema).find_map(|part| self.step(part, step)))
    }

    /// A keyword of a schema or of what it is made of.
    fn word<'a>(&'a self, schema: &'a Value, keyword: &str) -> Option<&'a Value> {
        schema.get(keyword).or_else(|| self.parts(schema).find_map(|part| self.word(part, keyword)))
    }

    /// What a schema refers to and consists of.
    fn parts<'a>(&'a self, schema: &'a Value) -> impl Iterator<Item = &'a Value> {
        let target = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|name| self.0.pointer(name.strip_prefix('#')?));
        let several = ["anyOf", "oneOf", "allOf"]
            .into_iter()
            .filter_map(|keyword| schema.get(keyword)?.as_array())
            .flatten();
        target.into_iter().chain(several)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_knows_what_is_required() {
        let shape = Shape::of::<Document>();
        assert_eq!(shape.required(&Path::default()), ["version", "gateway"]);
        let modbus = Path::default().join("devices[0].driver.modbus");
        assert_eq!(shape.required(&modbus), ["link", "points"]);
        assert_eq!(shape.required(&modbus.join("points[2]")), ["name", "register", "address"]);
        let description = shape.description(&modbus.then("link"));
        assert!(description.is_some_and(|d| d.starts_with("The link")), "{description:?}");
        let size = shape.description(&Path::default().join("streams[0].window.tumbling.size"));
        assert!(size.is_some_and(|d| d.starts_with("Length of each window")), "{size:?}");
    }
}
