//! The operator checks documents without any protocol or engine in its tree. So this crate must
//! not bring them in.

use std::process::Command;

#[test]
fn no_runtime_engine_or_protocol_is_in_the_tree() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "-p", "tidegate-config", "-e", "normal", "--prefix", "none", "--offline"])
        .args(["--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && tree.contains("tidegate-drivers"), "{tree}");
    let forbidden = [
        "arrow",
        "arrow-array",
        "arrow-select",
        "datafusion",
        "redb",
        "rumqttc",
        "rumqttc-v4-next",
        "tokio",
        "tokio-modbus",
    ];
    for line in tree.lines() {
        let name = line.split(' ').next().unwrap();
        assert!(!forbidden.contains(&name), "{name} is in the tree of tidegate-config");
    }
}
