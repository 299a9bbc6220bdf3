//! Nothing is allocated for a value on the way from a device to its window, and nothing for a point
//! of a polled row; what is allocated for a request and for a batch is counted here.
//!
//! An allocator that counts stands in front of the system's, for this test program alone.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, StringArray, TimestampMicrosecondArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use tidegate::batch::Batcher;
use tidegate::clock::{ManualClock, SharedClock};
use tidegate_drivers::bus;
use tidegate_drivers::south::modbus::{Bus, ModbusDevice, ModbusSouth};
use tidegate_drivers::table::Value;
use tidegate_drivers::{ArrayPool, Point, Reason, South, TableBuilder};
use tidegate_engine::{Event, Sql, Stream, StreamSpec, TableSchema, Window};

/// Counts what the thread that asks for it allocates.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // A thread that is ending has nobody to tell.
    COUNT.try_with(|count| count.set(count.get() + 1)).ok();
}

#[expect(unsafe_code, reason = "an allocator is unsafe by nature; this one only passes on")]
mod passes_on {
    use super::{Counting, GlobalAlloc, Layout, System, count_one};

    // SAFETY: every call is the system allocator's, with the same arguments.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count_one();
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            unsafe { System.dealloc(at, layout) }
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count_one();
            unsafe { System.realloc(at, layout, size) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count() -> u64 {
    COUNT.with(Cell::get)
}

/// A device that answers every read of holding registers with floats of 1.0.
fn device() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 12];
        while socket.read_exact(&mut request).is_ok() {
            answer(&mut socket, &request);
        }
    });
    addr
}

fn answer(socket: &mut TcpStream, request: &[u8; 12]) {
    let registers = u16::from_be_bytes([request[10], request[11]]);
    let mut reply = request[..4].to_vec();
    reply.extend_from_slice(&(3 + 2 * registers).to_be_bytes());
    reply.extend_from_slice(&[request[6], 3, u8::try_from(2 * registers).unwrap()]);
    for _ in 0..registers / 2 {
        reply.extend_from_slice(&1.0_f32.to_be_bytes());
    }
    socket.write_all(&reply).unwrap();
}

fn schema(floats: usize) -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let mut fields = vec![
        Field::new("time", utc, false),
        Field::new("device", DataType::Utf8, false),
        Field::new("quality", DataType::Utf8, false),
        Field::new("seq", DataType::UInt64, false),
    ];
    fields.extend((0..floats).map(|p| Field::new(format!("p{p}"), DataType::Float32, true)));
    Arc::new(Schema::new(fields))
}

/// Batches that are held while the next ones are made: those that wait for the store.
const HELD: usize = 3;

/// Allocations of one cycle of a device: requests, replies, decoding, and the batch.
fn of_a_cycle(points: usize) -> u64 {
    const CYCLES: u64 = 20;
    // Memory has found its size after the first ones.
    const WARM: u64 = 8;
    let addr = device();
    let bus: Bus = serde_json::from_value(serde_json::json!({
        "tcp": { "host": "127.0.0.1", "port": addr.port() }
    }))
    .unwrap();
    let point = |p: usize| {
        serde_json::json!({
            "name": format!("p{p}"), "register": "holding", "address": 2 * p, "type": "f32"
        })
    };
    let device: ModbusDevice = serde_json::from_value(serde_json::json!({
        "link": "link",
        "polls": [ { "name": "all", "every": "10ms" } ],
        "points": (0..points).map(point).collect::<Vec<_>>(),
    }))
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (handle, mut owner) = bus::open("link", &bus);
        let owner = tokio::spawn(async move { owner.run().await });
        let mut south = ModbusSouth::new("unit", device, handle).unwrap();
        let arrays = ArrayPool::default();
        let mut rows = TableBuilder::sharing(south.shared_points(), false, arrays);
        let clocks = (Arc::new(ManualClock::at(0)) as SharedClock, Arc::default());
        let mut batcher = Batcher::new("unit", schema(points), false, clocks, 0);
        let mut held = VecDeque::with_capacity(HELD + 1);
        let mut before = 0;
        for cycle in 0..CYCLES + WARM {
            if cycle == WARM {
                before = count();
            }
            while rows.is_empty() {
                south.read(&mut rows).await.unwrap();
            }
            let mut finished = rows.finish();
            let stamp = batcher.stamp(&mut finished);
            let batch = batcher.close(finished, stamp).unwrap();
            assert_eq!((batch.num_rows(), batch.column(4).null_count()), (1, 0));
            held.push_back(batch);
            if held.len() > HELD {
                held.pop_front();
            }
        }
        let allocations = count() - before;
        owner.abort();
        allocations.div_ceil(CYCLES)
    })
}

/// The four columns beside the points, two lists of columns, the values' buffer, and what a
/// request costs.
const OF_A_BATCH: u64 = 28;
/// The channel for its answer.
const OF_A_REQUEST: u64 = 1;

#[test]
fn a_polled_row_costs_nothing_a_point() {
    let (narrow, wide) = (of_a_cycle(62), of_a_cycle(62 * 17));
    assert!(narrow <= OF_A_BATCH, "{narrow} allocations a batch");
    let more = wide.saturating_sub(narrow);
    assert!(more <= 16 * OF_A_REQUEST, "{more} allocations for 992 points in 16 requests");
}

/// Allocations of a row with so many points of each kind, half of them without a value.
fn of_a_row(points: usize) -> u64 {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let types = [DataType::Boolean, DataType::Utf8, DataType::Binary, DataType::Int16, utc];
    let columns: Vec<Point> = (0..points)
        .flat_map(|p| types.iter().map(move |t| Point::new(format!("{t}_{p}"), t.clone())))
        .collect();
    let mut table = TableBuilder::new(&columns, true);
    let mut before = 0;
    for row in 0..10 {
        if row == 5 {
            before = count();
        }
        table.begin();
        for (at, point) in columns.iter().enumerate() {
            match &point.data_type {
                _ if at % 2 == 0 => table.fail(at, Reason::Timeout),
                DataType::Boolean => table.value(at, Value::Bool(true)),
                DataType::Utf8 => table.value(at, Value::Text("running")),
                DataType::Binary => table.value(at, Value::Bytes(b"running")),
                DataType::Int16 => table.value(at, Value::I16(-1)),
                _ => table.value(at, Value::Time(1)),
            }
        }
        table.end(tokio::time::Instant::now());
        let rows = table.finish();
        assert_eq!(rows.columns.len(), 5 * points);
        assert_eq!(rows.columns[0].null_count() + rows.columns[1].null_count(), 1);
    }
    count() - before
}

#[test]
fn text_bits_failures_and_point_qualities_cost_nothing_a_point_either() {
    let (few, many) = (of_a_row(2), of_a_row(200));
    assert_eq!(few, many);
}

fn rows(schema: &SchemaRef, first: u64, rows: u64) -> RecordBatch {
    let numbers = first..first + rows;
    let times = numbers.clone().map(|n| i64::try_from(n).unwrap() * 1_000);
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(times).with_timezone("UTC")),
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| "unit"))),
        Arc::new(StringArray::from_iter_values(numbers.clone().map(|_| "good"))),
        Arc::new(UInt64Array::from_iter_values(numbers.clone())),
    ];
    for _ in 4..schema.fields().len() {
        columns.push(Arc::new(Float32Array::from_iter_values(numbers.clone().map(|_| 1.0))));
    }
    RecordBatch::try_new(schema.clone(), columns).unwrap()
}

/// Allocations of ten windows whose batches have so many rows.
fn of_windows(batch_rows: u64) -> u64 {
    const COLUMNS: usize = 100;
    let table =
        TableSchema { name: "t".into(), schema: schema(COLUMNS), time_column: "time".into() };
    let averages: Vec<String> = (0..COLUMNS).map(|p| format!("avg(p{p}) AS p{p}")).collect();
    let text = format!("SELECT device, {} FROM t GROUP BY device", averages.join(", "));
    let query = Sql::new(64 << 20).unwrap().plan(&text, std::slice::from_ref(&table), true);
    let spec = StreamSpec {
        name: "s".into(),
        sources: Vec::new(),
        window: Some(Window::Tumbling {
            size: i64::try_from(batch_rows).unwrap() * 10_000,
            offset: 0,
        }),
        allowed_lateness: 0,
        idle_after: 5_000_000,
        lag: 0,
        side_tables: 0,
        latest: vec![],
        future: None,
        keep_failed: false,
        memory_max: 64 << 20,
        tables: vec![table.clone()],
    };
    let mut stream = Stream::new(spec, query.unwrap(), 0).unwrap();
    let batches: Vec<_> =
        (0..101).map(|n| rows(&table.schema, n * batch_rows, batch_rows)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let before = count();
        let (mut position, mut results) = (0, 0);
        for batch in batches {
            let rows = batch.num_rows() as u64;
            let effects = stream.apply(Event::Rows { table: 0, position, batch }, 0).await.unwrap();
            position += rows;
            results += effects.results.len();
        }
        assert_eq!((results, stream.counts().plans), (10, 1), "planned once, ran ten times");
        count() - before
    })
}

#[test]
fn more_rows_cost_no_allocation_a_value() {
    let (few, many) = (of_windows(64), of_windows(640));
    let values = 101 * (640 - 64) * 100;
    let a_value = (many as f64 - few as f64) / f64::from(values);
    assert!(a_value < 0.001, "{a_value} allocations a value; {few}, {many}");
}
