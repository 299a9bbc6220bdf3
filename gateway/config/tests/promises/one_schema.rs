//! The published schema is the one that is made from the types, and says something about each
//! field.

use serde_json::Value;
use tidegate_config::schema_json;

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../board-configs/schema.json");

#[test]
fn the_published_schema_is_the_generated_one() {
    let generated = schema_json();
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        use std::io::Write;
        std::fs::File::create(PUBLISHED).unwrap().write_all(generated.as_bytes()).unwrap();
    }
    let published = std::fs::read_to_string(PUBLISHED).unwrap();
    assert!(
        published == generated,
        "board-configs/schema.json is not what the types say: run the tests with TIDEGATE_BLESS=1"
    );
}

#[test]
fn every_field_has_a_sentence_and_is_required_or_has_a_default() {
    let schema: Value = serde_json::from_str(&schema_json()).unwrap();
    let mut faults = Vec::new();
    visit("Document", &schema, &schema, &mut faults);
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        visit(name, definition, &schema, &mut faults);
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

fn visit(name: &str, definition: &Value, root: &Value, faults: &mut Vec<String>) {
    // A test's row is columns; only `at` is required, and the others have no default to show.
    let own = name != "TestRow" && name != "Document";
    for (field, schema) in definition["properties"].as_object().into_iter().flatten() {
        let required = definition["required"].as_array().into_iter().flatten().any(|f| f == field);
        let target = schema["$ref"].as_str().and_then(|path| root.pointer(&path[1..]));
        let described =
            [Some(schema), target].into_iter().flatten().any(|s| s["description"].is_string());
        if !described {
            faults.push(format!("{name}.{field} has no sentence"));
        }
        if own && !required && schema.get("default").is_none() {
            faults.push(format!("{name}.{field} is neither required nor has a default"));
        }
    }
}
