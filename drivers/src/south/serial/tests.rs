use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use serde_json::json;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{advance, timeout};

use super::*;
use crate::table::{Quality, Rows};

fn lines(splitter: &mut Splitter, bytes: &[u8]) -> Vec<String> {
    splitter.push(bytes);
    let mut all = Vec::new();
    while let Some(line) = splitter.next() {
        all.push(match line {
            Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Line::TooLong => "(too long)".to_owned(),
        });
    }
    all
}

#[test]
fn lines_end_where_the_device_ends_them() {
    let text = b"one\r\ntwo\n\r\n\nthree\r\n";
    for cut in 0..text.len() {
        let mut splitter = Splitter::new(LineEnd::Lf, 5);
        let mut all = lines(&mut splitter, &text[..cut]);
        all.extend(lines(&mut splitter, &text[cut..]));
        assert_eq!(all, ["one", "two", "three"], "cut at {cut}");
    }
    let mut splitter = Splitter::new(LineEnd::Cr, 5);
    assert_eq!(lines(&mut splitter, b"one\rtwo\r\nthree\rfo"), ["one", "two", "three"]);
    assert_eq!(lines(&mut splitter, b"ur\r"), ["four"]);
}

#[test]
fn a_line_without_end_takes_no_memory() {
    let mut splitter = Splitter::new(LineEnd::Lf, 8);
    assert_eq!(lines(&mut splitter, b"12345678\n123456789\n1\n"), ["12345678", "(too long)", "1"]);
    let mut all = Vec::new();
    for _ in 0..10_000 {
        all.extend(lines(&mut splitter, b"xxxx"));
    }
    assert_eq!(all, ["(too long)"]);
    assert!(splitter.bytes.capacity() < 100, "{}", splitter.bytes.capacity());
    assert_eq!(lines(&mut splitter, b"yy\nnext\n"), ["next"]);
}

/// A scale: `ST,GS,+  12.50 kg`, with the state of the weight, and sometimes an article.
fn scale(more: &serde_json::Value) -> (SerialSouth, TableBuilder, DuplexStream) {
    let mut config = json!({
        "port": "/dev/ttyS1",
        "pattern": r"^(?<state>ST|US),GS,(?<weight>[^k]+)kg(?: #(?<article>\d+))?$",
        "points": [
            { "name": "state", "type": "string" },
            { "name": "kg", "group": "weight", "type": "f64" },
            { "name": "article", "type": "i64" },
        ],
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut south = SerialSouth::new(serde_json::from_value(config).unwrap()).unwrap();
    let (ours, theirs) = duplex(1 << 16);
    south.take_over(Box::new(ours));
    let table = TableBuilder::new(south.points(), true);
    (south, table, theirs)
}

async fn rows(south: &mut SerialSouth, table: &mut TableBuilder) -> Rows {
    south.read(table).await.unwrap();
    table.finish()
}

fn reasons(rows: &Rows, row: usize) -> Vec<Option<&str>> {
    let of = |(_, r): &'_ (_, arrow::array::ArrayRef)| r.as_string::<i32>().is_valid(row);
    rows.point_qualities
        .iter()
        .map(|pair| of(pair).then(|| pair.1.as_string::<i32>().value(row)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn groups_become_columns() {
    let (mut south, mut table, mut device) = scale(&json!({}));
    advance(OPENING).await;
    device
        .write_all(b"ST,GS,  12.50 kg #7\r\nUS,GS,-----kg\r\nboot ok\r\nST,GS,3kg\r\n")
        .await
        .unwrap();
    let rows = rows(&mut south, &mut table).await;
    assert_eq!(rows.qualities, [Quality::Good, Quality::Uncertain, Quality::Uncertain]);
    let weights = rows.columns[1].as_primitive::<Float64Type>();
    assert_eq!(weights.iter().collect::<Vec<_>>(), [Some(12.5), None, Some(3.0)]);
    assert_eq!(rows.columns[2].as_primitive::<Int64Type>().value(0), 7);
    assert_eq!(reasons(&rows, 1), [None, Some("wrong_type"), Some("missing")]);
    let stats = south.stats();
    assert_eq!((stats.get(Counter::Replies), stats.get(Counter::Rejected)), (3, 1));
    assert_eq!(stats.last_error(), None, "a line that matched came after");
    device.write_all(b"boot ok\n").await.unwrap();
    timeout(OPENING, south.read(&mut table)).await.unwrap_err();
    assert_eq!(stats.last_error().unwrap(), "the pattern does not match \"boot ok\"");
}

/// What is under way when the port is opened could be the rest of a line: `2.50` of `12.50`.
#[tokio::test(start_paused = true)]
async fn half_a_line_after_opening_is_not_a_value() {
    let (mut south, mut table, mut device) = scale(
        &json!({ "pattern": "(?<weight>[0-9.]+)", "points": [{ "name": "weight", "type": "f64" }] }),
    );
    device.write_all(b"2.50\n13.00\n").await.unwrap();
    let rows = rows(&mut south, &mut table).await;
    assert_eq!(rows.columns[0].as_primitive::<Float64Type>().values(), &[13.0]);
}

#[tokio::test(start_paused = true)]
async fn batches_are_bounded_in_rows_and_time() {
    let (mut south, mut table, mut device) = scale(&json!({ "batch_rows": 2, "linger": "100ms" }));
    advance(OPENING).await;
    device.write_all(b"ST,GS,1kg\nST,GS,2kg\nST,GS,3kg\n").await.unwrap();
    let start = Instant::now();
    assert_eq!(rows(&mut south, &mut table).await.len(), 2);
    assert_eq!(start.elapsed(), Duration::ZERO);
    // A read that is given up loses nothing and appends nothing twice.
    timeout(Duration::from_millis(30), south.read(&mut table)).await.unwrap_err();
    assert_eq!(rows(&mut south, &mut table).await.len(), 1);
    assert!(start.elapsed().abs_diff(Duration::from_millis(100)) <= Duration::from_millis(2));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_stream_is_an_unplugged_port() {
    let (mut south, mut table, mut device) = scale(&json!({}));
    advance(OPENING).await;
    device.write_all(b"ST,GS,1kg\nST,G").await.unwrap();
    assert_eq!(rows(&mut south, &mut table).await.len(), 1);
    drop(device);
    let fault = south.read(&mut table).await.unwrap_err();
    assert_eq!(fault, Fault::Link("/dev/ttyS1: is unplugged".to_owned()));
    assert_eq!(south.stats().state(), LinkState::Down);
    let fault = south.connect().await.unwrap_err();
    assert!(fault.to_string().starts_with("/dev/ttyS1: cannot be opened: "), "{fault}");
}
