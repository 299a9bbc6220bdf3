//! Decisions about dependencies that a careless `cargo add` would undo without a word: one Arrow and
//! one SQL parser (two do not mix), one TLS provider (ring), no OpenSSL, and a configuration crate
//! that the operator can link without a runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::harness::repository;

/// All packages that are built, by name, with their versions.
fn tree(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(repository())
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            packages.entry(name.to_owned()).or_default().insert(version.to_owned());
        }
    }
    packages
}

#[test]
fn one_of_each_and_none_of_some() {
    let packages = tree(&["--workspace", "--edges", "normal,build"]);
    for name in
        ["arrow", "arrow-schema", "datafusion", "sqlparser", "redb", "tokio", "rustls", "ring"]
    {
        let versions = packages.get(name).map(BTreeSet::len);
        assert_eq!(versions, Some(1), "{name}: {:?}", packages.get(name));
    }
    for name in
        ["openssl", "openssl-sys", "native-tls", "aws-lc-rs", "aws-lc-sys", "serde_yml", "cmake"]
    {
        assert!(!packages.contains_key(name), "{name}: {:?}", packages.get(name));
    }
}

#[test]
fn the_configuration_needs_no_runtime() {
    let packages = tree(&["--package", "tidegate-config", "--edges", "normal"]);
    for name in ["tokio", "datafusion", "redb", "rumqttc-v4-next", "tokio-modbus", "axum"] {
        assert!(!packages.contains_key(name), "tidegate-config needs {name}");
    }
}
