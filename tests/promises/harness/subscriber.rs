//! The far side: records what arrives at a broker, in order, and is back after each new start of
//! the broker before the gateway is.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::gate::Gate;
use super::mqtt::Client;
use super::records::Record;
use super::{secs, wait_until};

/// A subscriber; it ends when it is dropped.
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    port: u16,
    filter: String,
    /// Opened after each SUBACK, closed with each loss of the broker.
    gate: Option<Arc<Gate>>,
    subscribed: AtomicBool,
    ended: AtomicBool,
    records: Mutex<Vec<Record>>,
}

impl Subscriber {
    /// Subscribes to `filter` at a broker's port, now or as soon as the broker is there.
    pub(crate) fn start(port: u16, filter: &str, gate: Option<Arc<Gate>>) -> Self {
        let shared = Arc::new(Shared {
            port,
            filter: filter.to_owned(),
            gate,
            subscribed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            records: Mutex::default(),
        });
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || ours.run());
        Self { shared, thread: Some(thread) }
    }

    /// Waits for the SUBACK.
    pub(crate) fn wait_subscribed(&self) {
        wait_until("the subscriber's SUBACK", secs(10), || self.is_subscribed());
    }

    /// Waits until the subscriber knows that the broker is gone, so that its gate is closed.
    pub(crate) fn wait_lost(&self) {
        wait_until("the subscriber to lose the broker", secs(10), || !self.is_subscribed());
    }

    fn is_subscribed(&self) -> bool {
        self.shared.subscribed.load(Ordering::SeqCst)
    }

    /// All that arrived so far, in the order of arrival.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.shared.records.lock().expect("not poisoned").clone()
    }

    /// Looks at what arrived so far.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&[Record]) -> T) -> T {
        look(&self.shared.records.lock().expect("not poisoned"))
    }

    /// Waits until a value of a stream's column has arrived.
    pub(crate) fn wait_value(&self, stream: &str, column: &str, value: i64, limit: Duration) {
        wait_until(&format!("{column} = {value} of {stream}"), limit, || {
            // The newest is looked at first: it is the one that is waited for.
            self.look(|all| {
                all.iter().rev().any(|record| {
                    record.body[column].as_i64() == Some(value) && record.stream() == stream
                })
            })
        });
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the subscriber's thread failed");
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            // A broker that is not there, or is frozen, is tried again.
            drop(self.listen());
            self.subscribed.store(false, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn listen(&self) -> io::Result<()> {
        let mut client = Client::connect(self.port, "far-side")?;
        client.subscribe(&self.filter)?;
        self.subscribed.store(true, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.open();
        }
        let result = self.receive(&mut client);
        if let Some(gate) = &self.gate {
            gate.close();
        }
        result
    }

    fn receive(&self, client: &mut Client) -> io::Result<()> {
        while !self.ended.load(Ordering::SeqCst) {
            if let Some(message) = client.next()? {
                let record = Record::new(&message.topic, &message.payload);
                self.records.lock().expect("not poisoned").push(record);
            }
        }
        Ok(())
    }
}

#[test]
fn what_passes_the_gate_is_never_lost_by_a_new_broker() {
    let scratch = super::Scratch::new("gate");
    let mut broker = super::broker::Broker::start(&scratch, "");
    let gate = Arc::new(Gate::new(broker.port));
    let far_side = Subscriber::start(broker.port, "t/#", Some(Arc::clone(&gate)));
    far_side.wait_subscribed();
    for round in 0..3 {
        // As the gateway does: try until there is a connection, publish until it breaks.
        let publish = || {
            let mut near_side = Client::connect(gate.port, "near-side").ok()?;
            near_side.publish("t/n", format!("{{\"n\": {round}}}").as_bytes()).ok()
        };
        super::wait_for("a way through the gate", secs(10), publish);
        wait_until("the message", secs(5), || far_side.look(<[_]>::len) == round + 1);
        broker.kill();
        far_side.wait_lost();
        assert!(publish().is_none(), "the gate is closed");
        broker.restart();
    }
    let arrived: Vec<_> = far_side.records().iter().map(|record| record.int("n")).collect();
    assert_eq!(arrived, [0, 1, 2]);
}
