//! Field cases A51 and A54 in a file: a process died in the middle of a line, and whoever read the
//! file next stumbled over half a record, for ever.
//!
//! Here: a gateway that is killed while it writes continues with whole lines. No record is missing;
//! one that stands twice is the same both times.

use std::collections::BTreeSet;
use std::fs;

use crate::harness::gateway::{Gateway, count, head};
use crate::harness::records::{assert_contiguous, lines, repeated};
use crate::harness::{Scratch, secs, setting};

#[test]
fn a51_a54_no_half_line_and_no_lost_record() {
    let scratch = Scratch::new("file");
    let (head, path) = (head(&scratch), scratch.join("out.jsonl"));
    let config = format!(
        "{head}
devices:
  - name: source
    driver:
      generate:
        every: 10ms
        rows: 20
        points: [ {{ name: n, value: {{ counter: {{}} }} }}, {{ name: v, value: {{ constant: 1.5 }} }} ]
streams: [ {{ name: rows, from: [source], sql: \"SELECT time, n, v FROM source\", to: [ {{ sink: disk }} ] }} ]
sinks: [ {{ name: disk, driver: {{ file: {{ path: {} }} }} }} ]
",
        path.display()
    );
    // Killed as soon as it has written a few records more: in the middle of the next ones.
    for round in 0..setting("TIDEGATE_TEST_FILE_KILLS", 8) {
        let mut gateway = Gateway::start(&scratch, &config);
        gateway.wait_status("records in the file", secs(20), |status| {
            (count(status, "sinks", "disk", "delivered") >= 100 + 37 * round).then_some(())
        });
        gateway.kill();
    }
    // What a crash can leave of a line, put there by hand.
    let mut torn = fs::read(&path).expect("the file");
    torn.truncate(torn.iter().rposition(|byte| *byte == b'\n').expect("a whole line") + 1);
    torn.extend(b"{\"_id\":\"test/1/rows/99");
    fs::write(&path, torn).expect("the file");

    let mut gateway = Gateway::start(&scratch, &config);
    gateway.wait_status("records in the file", secs(20), |status| {
        (count(status, "sinks", "disk", "delivered") >= 100).then_some(())
    });
    assert_eq!(gateway.stop().code, Some(0));

    let records = lines(&fs::read_to_string(&path).expect("the file"));
    let again = repeated(&records);
    assert_contiguous(&records);
    let ids: BTreeSet<_> = records.iter().map(|record| record.id_parts().3).collect();
    eprintln!("{} records, {again} twice", ids.len());
    let order: Vec<_> = records.iter().map(|record| record.id_parts().3).collect();
    let mut newest = 0;
    for seq in order {
        // A step back begins what is written again; a step forward leaves nothing out.
        assert!(seq <= newest + 1, "{seq} after {newest}");
        newest = newest.max(seq);
    }
}
