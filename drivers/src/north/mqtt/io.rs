//! The moving part of the MQTT sink: one connection, driven by whoever delivers.
//!
//! It keeps no payload: what was not taken is the caller's, and is delivered again after a new
//! connection. Source: MQTT 3.1.1, sections 2.3.1, 3.3 and 4.3.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use rumqttc::{Packet, Publish, QoS};
use tokio::time::Instant;

use super::MqttSink;
use crate::border::{Delivered, Fault, North, Payload};
use crate::mqtt::inbox::Incoming;
use crate::mqtt::link::{CONTROL_PACKET_MAX, Dial, Link, Reading, Turn};
use crate::mqtt::session::Session;
use crate::stats::{Counter, Stats};

/// Bytes that are queued for the socket before it is driven again.
const OUT_CHUNK: usize = 64 << 10;

/// Publishes payloads to a broker, in order.
///
/// At QoS 1 a payload is taken when the broker has acknowledged it and all before it. At QoS 0
/// it is taken when the operating system has accepted all its bytes: what it still holds when
/// the connection breaks is lost, as QoS 0 says.
///
/// The session is clean and nothing is queued here: what was not taken is the caller's, and
/// is delivered again after [`North::connect`].
pub struct MqttNorth {
    sink: MqttSink,
    dial: Dial,
    gateway: String,
    stats: Arc<Stats>,
    session: Option<Session>,
    window: Window,
    /// Topics that were made, by stream and by whether the record waited for a connection.
    topics: HashMap<(Arc<str>, bool), Bytes>,
    replay_topic: Option<String>,
}

impl MqttNorth {
    /// Checks the sink and makes it ready; nothing connects yet. `gateway` is what the topic's
    /// `{gateway}` becomes, and `default_client_id` is used where the sink names none.
    pub fn new(
        sink: MqttSink,
        default_client_id: String,
        gateway: &str,
        password: Option<String>,
    ) -> Result<Self, Fault> {
        if let Some((field, message, hint)) = sink.problems().into_iter().next() {
            return Err(Fault::Config(format!("{field}: {message}: {hint}")));
        }
        let dial = Dial {
            url: sink.url.clone(),
            client_id: sink.client_id.clone().unwrap_or(default_client_id),
            username: sink.username.clone(),
            password,
            clean_session: true,
            keep_alive: sink.keep_alive,
            max_packet: CONTROL_PACKET_MAX,
        };
        Ok(Self {
            sink,
            dial,
            gateway: gateway.to_owned(),
            stats: Arc::default(),
            session: None,
            window: Window::new(Instant::now()),
            topics: HashMap::new(),
            replay_topic: None,
        })
    }

    /// Publishes records that waited for a connection to a topic of their own; a template such as
    /// the sink's `topic`, which has passed [`topic_problem`](super::topic_problem).
    #[must_use]
    pub fn with_replay_topic(self, template: Option<String>) -> Self {
        Self { replay_topic: template, ..self }
    }

    fn topic(&mut self, payload: &Payload) -> Bytes {
        let key = (Arc::clone(&payload.stream), payload.replayed);
        if let Some(topic) = self.topics.get(&key) {
            return topic.clone();
        }
        let template = match &self.replay_topic {
            Some(template) if payload.replayed => template,
            _ => &self.sink.topic,
        };
        let topic = template.replace("{gateway}", &self.gateway);
        let topic = Bytes::from(topic.replace("{stream}", &payload.stream));
        self.topics.insert(key, topic.clone());
        topic
    }

    /// The packet of a payload with its id (0 at QoS 0), or why it is refused. The id comes first:
    /// without one the codec reckons the packet too short.
    fn packet(&mut self, payload: &Payload, pkid: u16) -> Result<Publish, Fault> {
        let topic = self.topic(payload);
        let packet = Publish {
            dup: false,
            qos: if self.sink.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce },
            retain: self.sink.retain,
            topic,
            pkid,
            payload: payload.body.clone(),
        };
        let max = self.sink.max_packet;
        if packet.size() as u64 > max.get() {
            self.stats.add(Counter::Rejected, 1);
            let size = packet.size();
            return Err(Fault::Refused(format!(
                "record {} makes a packet of {size} bytes, more than `max_packet: {max}`",
                payload.id
            )));
        }
        Ok(packet)
    }

    /// QoS 0: counts what the socket has taken, a chunk at a time.
    async fn deliver_unacknowledged(&mut self, link: &mut Link, payloads: &[Payload]) -> Delivered {
        let mut taken = 0;
        loop {
            let mut queued = taken;
            let mut refused = None;
            while queued < payloads.len() && refused.is_none() && link.unsent() < OUT_CHUNK {
                let packet = self.packet(&payloads[queued], 0);
                match packet.and_then(|packet| link.send(&Packet::Publish(packet))) {
                    Ok(()) => queued += 1,
                    Err(fault) => refused = Some(fault),
                }
            }
            if let Err(fault) = self.drain(link).await {
                return Delivered { count: taken, fault: Some(fault) };
            }
            self.stats.add(Counter::Requests, (queued - taken) as u64);
            taken = queued;
            if refused.is_some() || taken == payloads.len() {
                return Delivered { count: taken, fault: refused };
            }
        }
    }

    /// Sends all that is queued; a socket that takes nothing for `ack_timeout` is lost.
    async fn drain(&mut self, link: &mut Link) -> Result<(), Fault> {
        let patience = self.sink.ack_timeout.duration();
        let mut unsent = link.unsent();
        let mut deadline = Instant::now() + patience;
        while unsent > 0 {
            let turn = link.turn(Reading::On, Some(deadline)).await?;
            self.acknowledge(link)?;
            if link.unsent() < unsent {
                unsent = link.unsent();
                deadline = Instant::now() + patience;
            } else if turn == Turn::Expired {
                self.stats.add(Counter::Timeouts, 1);
                return Err(link.fail(format!("the broker took nothing for {patience:?}")));
            }
        }
        Ok(())
    }

    /// QoS 1: counts what the broker has acknowledged, in order.
    async fn deliver_acknowledged(&mut self, link: &mut Link, payloads: &[Payload]) -> Delivered {
        // A delivery that was dropped may have left messages in flight. Their places in the
        // window are taken until they are acknowledged; they count for nobody.
        let mut abandoned = self.window.len();
        let (mut sent, mut taken, mut refused) = (0, 0, None);
        loop {
            while sent < payloads.len()
                && refused.is_none()
                && self.window.len() < usize::from(self.sink.in_flight)
                && link.unsent() < OUT_CHUNK
            {
                match self.publish(link, &payloads[sent]) {
                    Ok(()) => sent += 1,
                    Err(fault) => refused = Some(fault),
                }
            }
            // While more is to come, it carries the confirmations of TCP.
            link.set_prompt(sent == payloads.len() || refused.is_some());
            if taken == sent && (sent == payloads.len() || refused.is_some()) {
                return Delivered { count: taken, fault: refused };
            }
            match self.wait(link).await {
                Ok(mut freed) => {
                    let others = freed.min(abandoned);
                    abandoned -= others;
                    freed -= others;
                    taken += freed;
                }
                Err(fault) => {
                    return Delivered { count: taken, fault: Some(fault) };
                }
            }
        }
    }

    /// Queues a payload with the next packet id.
    fn publish(&mut self, link: &mut Link, payload: &Payload) -> Result<(), Fault> {
        let packet = self.packet(payload, self.window.next_id())?;
        link.send(&Packet::Publish(packet))?;
        self.window.push(Instant::now());
        self.stats.add(Counter::Requests, 1);
        Ok(())
    }

    /// Waits until something moves and takes the acknowledgements that came. Returns how many
    /// messages left the window.
    async fn wait(&mut self, link: &mut Link) -> Result<usize, Fault> {
        let patience = self.sink.ack_timeout.duration();
        let turn = link.turn(Reading::On, Some(self.window.since + patience)).await?;
        let freed = self.acknowledge(link)?;
        if freed == 0 && turn == Turn::Expired {
            self.stats.add(Counter::Timeouts, 1);
            return Err(link.fail(format!("no acknowledgement within {patience:?}")));
        }
        Ok(freed)
    }

    fn acknowledge(&mut self, link: &mut Link) -> Result<usize, Fault> {
        let mut freed = 0;
        while let Some(incoming) = link.packet()? {
            match incoming {
                Incoming::Packet(Packet::PubAck(ack)) if self.window.holds(ack.pkid) => {
                    self.stats.add(Counter::Replies, 1);
                    freed += self.window.acknowledge(ack.pkid, link.heard());
                }
                _ => self.stats.add(Counter::BadReplies, 1),
            }
        }
        Ok(freed)
    }
}

impl North for MqttNorth {
    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.session = None;
            self.window = Window::new(Instant::now());
            let (link, _) = Link::dial(&self.dial, Arc::clone(&self.stats)).await?;
            self.session = Some(Session::start(link, Reading::On));
            Ok(())
        })
    }

    fn deliver<'a>(&'a mut self, payloads: &'a [Payload]) -> BoxFuture<'a, Delivered> {
        Box::pin(async move {
            // Taken out, so that a dropped delivery and a fault alike need no further care: see
            // `Lent`.
            let mut lent = Lent::take(self);
            let Some(session) = &lent.session else {
                let fault = Fault::Link("not connected".to_owned());
                return Delivered { count: 0, fault: Some(fault) };
            };
            let mut link = session.hold().await;
            let delivered = if lent.north.sink.qos == 0 {
                lent.north.deliver_unacknowledged(&mut link, payloads).await
            } else {
                lent.north.deliver_acknowledged(&mut link, payloads).await
            };
            let lost = link.fault().is_some();
            drop(link);
            if lost {
                // Closes the socket now, not when the caller's backoff is over.
                lent.session = None;
            }
            delivered
        })
    }
}

/// The session while a delivery uses it; goes back when the delivery ends or is dropped.
struct Lent<'a> {
    north: &'a mut MqttNorth,
    session: Option<Session>,
}

impl<'a> Lent<'a> {
    fn take(north: &'a mut MqttNorth) -> Self {
        let session = north.session.take();
        Self { north, session }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.north.session = self.session.take();
    }
}

/// Messages in flight, in the order of their packet ids. Ids go round from 1 to 65,535, and the
/// window holds at most as many, so that no id is in flight twice.
struct Window {
    /// The id of the oldest message in flight, or of the next one.
    first: u16,
    acknowledged: VecDeque<bool>,
    /// Since when the broker owes an acknowledgement: the last one, or the first message after
    /// none was owed.
    since: Instant,
}

impl Window {
    /// All ids but 0 (2.3.1).
    const IDS: usize = 65_535;

    fn new(now: Instant) -> Self {
        Self { first: 1, acknowledged: VecDeque::new(), since: now }
    }

    fn len(&self) -> usize {
        self.acknowledged.len()
    }

    fn next_id(&self) -> u16 {
        self.id(self.acknowledged.len())
    }

    /// The id that is `ahead` of the first.
    fn id(&self, ahead: usize) -> u16 {
        let id = (usize::from(self.first) - 1 + ahead) % Self::IDS + 1;
        u16::try_from(id).unwrap_or(u16::MAX)
    }

    fn push(&mut self, now: Instant) {
        if self.acknowledged.is_empty() {
            self.since = now;
        }
        self.acknowledged.push_back(false);
    }

    fn place(&self, id: u16) -> usize {
        (usize::from(id) + Self::IDS - usize::from(self.first)) % Self::IDS
    }

    /// True where an acknowledgement of `id` is owed.
    fn holds(&self, id: u16) -> bool {
        id != 0 && self.acknowledged.get(self.place(id)) == Some(&false)
    }

    /// Takes an acknowledgement; returns how many messages left the window, oldest first.
    fn acknowledge(&mut self, id: u16, heard: Instant) -> usize {
        let place = self.place(id);
        if let Some(acknowledged) = self.acknowledged.get_mut(place) {
            *acknowledged = true;
            self.since = heard;
        }
        let freed = self.acknowledged.iter().take_while(|a| **a).count();
        self.acknowledged.drain(..freed);
        self.first = self.id(freed);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_frees_only_what_is_contiguous() {
        let now = Instant::now();
        let mut window = Window::new(now);
        for id in 1..=4 {
            assert_eq!(window.next_id(), id);
            window.push(now);
        }
        assert_eq!(window.acknowledge(2, now), 0);
        assert!(!window.holds(2), "a second acknowledgement is nobody's");
        assert_eq!(window.acknowledge(1, now), 2);
        assert_eq!(window.acknowledge(3, now), 1);
        assert!(window.holds(4) && !window.holds(5) && !window.holds(1) && !window.holds(0));
        assert_eq!((window.len(), window.next_id()), (1, 5));
    }

    #[test]
    fn ids_go_round_without_zero() {
        let now = Instant::now();
        let mut window = Window { first: 65_534, ..Window::new(now) };
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(window.next_id());
            window.push(now);
        }
        assert_eq!(ids, [65_534, 65_535, 1]);
        assert_eq!(window.acknowledge(65_534, now), 1);
        assert_eq!(window.acknowledge(1, now), 0);
        assert_eq!(window.acknowledge(65_535, now), 2);
        assert_eq!(window.next_id(), 2);
    }
}
