//! A folder of the store that cannot be used, as after a wrong mount or on a disk that turned
//! read-only: the gateway does not end again and again where nobody looks. It stays, says on its page
//! what stands in the way, and begins by itself when it is gone.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::harness::gateway::{Gateway, count, head, talk};
use crate::harness::{Scratch, free_port, secs, wait_for};

fn config(scratch: &Scratch, web: u16) -> String {
    let head = head(scratch).replace("127.0.0.1:0", &format!("127.0.0.1:{web}"));
    format!(
        "{head}
devices: [ {{ name: s, driver: {{ generate: {{ every: 50ms, points: [ {{ name: n, value: {{ counter: {{}} }} }} ] }} }} }} ]
streams: [ {{ name: rows, from: [s], sql: SELECT n FROM s, to: [ {{ sink: out }} ] }} ]
sinks: [ {{ name: out, driver: {{ stdout: {{}} }} }} ]
"
    )
}

/// What the page answers, as soon as it does.
fn page(web: u16, path: &str) -> (u16, String) {
    wait_for("the page", secs(10), || {
        let mut stream = TcpStream::connect(("127.0.0.1", web)).ok()?;
        let limit = Some(Duration::from_secs(5));
        stream.set_read_timeout(limit).expect("a socket option");
        talk(&mut stream, &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{web}")).ok()
    })
}

#[test]
fn it_waits_and_says_so_and_begins_by_itself() {
    let scratch = Scratch::new("nostore");
    let store = scratch.file("store", "not a folder");
    let web = free_port();
    let mut gateway = Gateway::start(&scratch, &config(&scratch, web));
    let (ready, body) = page(web, "/readyz");
    assert_eq!(ready, 503, "{body}");
    let reason: Value = serde_json::from_str(&body).expect("JSON");
    let reason = reason["reasons"][0].clone();
    assert_eq!(reason["part"], "store");
    let path = store.to_str().expect("a path");
    let told = reason["reason"].as_str().expect("words");
    assert!(told.contains(&format!("{path} is a file, not a folder")), "{told}");
    assert!(told.contains("name another folder"), "what to do: {told}");
    assert_eq!(page(web, "/healthz").0, 200, "the process is well");
    let (status, body) = page(web, "/api/v1/status");
    assert_eq!(status, 200);
    let status: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status["alarms"][0]["part"], "store", "{status:#}");
    assert_eq!(page(web, "/metrics").0, 200);
    assert!(gateway.runs());
    let errors = gateway.log().lines().filter(|line| line.contains("cannot be opened")).count();
    assert_eq!(errors, 1, "said once: {}", gateway.log());

    fs::remove_file(&store).expect("a file");
    gateway.wait_status("rows", secs(40), |status| {
        (count(status, "sinks", "out", "delivered") > 0).then_some(())
    });
    assert_eq!(page(web, "/readyz").0, 200);
    assert_eq!(gateway.stop().code, Some(0));
}

#[test]
fn a_gateway_that_waits_stops_at_once_and_takes_another_configuration() {
    let scratch = Scratch::new("nostore");
    scratch.file("store", "not a folder");
    let web = free_port();
    let wrong = config(&scratch, web);
    let mut gateway = Gateway::start(&scratch, &wrong);
    assert_eq!(page(web, "/readyz").0, 503);
    let stopped = gateway.stop();
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.took < secs(2), "{stopped:?}");

    let mut gateway = Gateway::start(&scratch, &wrong);
    assert_eq!(page(web, "/readyz").0, 503);
    let right = wrong.replace("/store,", "/other,");
    assert_ne!(right, wrong);
    scratch.file("tidegate.yaml", &right);
    wait_for("the other store", secs(20), || (page(web, "/readyz").0 == 200).then_some(()));
    assert!(scratch.join("other").is_dir());
    assert!(gateway.runs());
    assert_eq!(gateway.stop().code, Some(0));
}
