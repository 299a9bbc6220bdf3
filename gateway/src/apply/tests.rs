//! What a start does with a configuration over which the program itself panics.

use std::fs;

use super::*;

/// Panics over one variable, once it is told to.
struct Haunted(bool);

impl Environment for Haunted {
    fn var(&self, name: &str) -> Option<String> {
        assert!(!(self.0 && name == "GHOST"), "there is a ghost");
        Some("unnamed".to_owned())
    }

    fn read(&self, _: &str) -> Result<String, String> {
        Err("no files".to_owned())
    }
}

#[test]
fn a_panic_over_a_configuration_is_no_crash_loop() {
    let folder = std::env::temp_dir().join(format!("tidegate-boot-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (path, store) = (folder.join("t.yaml"), folder.join("store"));
    fs::create_dir_all(&store).unwrap();
    let text = |name: &str| {
        format!(
            "version: 1
gateway: {{ name: \"{name}\" }}
store:
  path: {}
devices: [ {{ name: m, driver: {{ generate: {{ points: [ {{ name: v, value: {{ constant: 1 }} }} ] }} }} }} ]
streams: [ {{ name: s, from: [m], sql: SELECT v FROM m, to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
",
            store.display()
        )
    };
    Staged::write(&path, text("${GHOST}").as_bytes(), 0o600).unwrap().publish().unwrap();
    // Nothing was kept: it is refused, with what the panic said.
    let Err(refused) = boot(&path, &Haunted(true)) else { panic!("it was read") };
    assert!(refused.human().contains("there is a ghost"), "{}", refused.human());
    assert!(refused.has_errors());
    // What worked last takes its place, and status says why.
    let good = SourceFile { name: path.display().to_string(), text: text("good") };
    keep_last_good(&store, &path, &[good]).unwrap();
    let Ok(booted) = boot(&path, &Haunted(true)) else { panic!("the last good one is there") };
    assert_eq!(booted.document.gateway.name.as_str(), "good");
    assert_eq!(booted.view.config.origin, ConfigOrigin::LastGood);
    let told: Vec<_> = booted.view.problems.iter().map(|p| (&*p.code, &*p.message)).collect();
    assert_eq!(told, [("E0701", "tidegate failed over this: there is a ghost")]);
    // Without the ghost it is a configuration like any other.
    let Ok(booted) = boot(&path, &Haunted(false)) else { panic!("it is right") };
    assert_eq!(booted.view.config.origin, ConfigOrigin::File);
    fs::remove_dir_all(&folder).unwrap();
}
