//! The moving part of the MQTT feed: one connection, read into rows by whoever reads.
//!
//! It knows nothing of stores: it acknowledges what [`South::settle`] names, in the order in which
//! the messages came. Source: MQTT 3.1.1, sections 3.3, 3.8 and 4.6.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rumqttc::{Packet, PubAck, Publish, QoS, SubAck, Subscribe, SubscribeFilter};
use rumqttc::{SubscribeReasonCode, matches};
use tokio::time::Instant;

use super::{Decode, MqttFeed};
use crate::border::{Fault, Receipt, South};
use crate::json::{Decoder, Origin};
use crate::mqtt::inbox::Incoming;
use crate::mqtt::link::{Dial, Link, Reading};
use crate::mqtt::session::{Held, Session};
use crate::point::Point;
use crate::stats::{Counter, Stats};
use crate::table::TableBuilder;

/// How long the broker may take to confirm a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The packet id of our only SUBSCRIBE; the ids of incoming messages are the broker's.
const SUBSCRIBE_ID: u16 = 1;
/// A broker has no more ids than these for messages in flight.
const UNSETTLED_MAX: usize = 65_535;
/// PUBLISH (2.2.1).
const PUBLISH_KIND: u8 = 3;

/// Reads messages of a broker into rows.
///
/// At QoS 1 a message is acknowledged by [`South::settle`], when its rows are durable. Until
/// then the broker keeps it, and offers it again after a lost connection: rows come at least
/// once. The session outlives the connection, so that the broker also keeps what arrives while
/// we are away. Nothing is queued here: while nobody reads, TCP tells the broker to wait.
pub struct MqttSouth {
    feed: MqttFeed,
    dial: Dial,
    columns: Vec<Point>,
    decoder: Decoder,
    stats: Arc<Stats>,
    session: Option<Session>,
    /// True once the broker has confirmed the filters of this configuration.
    subscribed: bool,
    /// Until when the confirmation that is under way may take.
    subscribing: Option<Instant>,
    acks: Acks,
    batch: Batch,
}

/// The batch that is being filled, which outlives a dropped `read`.
#[derive(Debug, Default)]
struct Batch {
    rows: usize,
    /// When its first row arrived.
    since: Option<Instant>,
    /// It has messages that want to be acknowledged.
    acks: bool,
}

impl MqttSouth {
    /// Checks the feed and makes it ready; nothing connects yet. `default_client_id` is used
    /// where the feed names none; at QoS 1 it must be the same after each start, since the
    /// broker keeps the session under it.
    pub fn new(
        feed: MqttFeed,
        default_client_id: String,
        password: Option<String>,
    ) -> Result<Self, Fault> {
        if let Some((field, message, hint)) = feed.problems().into_iter().next() {
            return Err(Fault::Config(format!("{field}: {message}: {hint}")));
        }
        let max_packet = usize::try_from(feed.max_packet.get())
            .map_err(|_| Fault::Config("max_packet: too large".to_owned()))?;
        let dial = Dial {
            url: feed.url.clone(),
            client_id: feed.client_id.clone().unwrap_or(default_client_id),
            username: feed.username.clone(),
            password,
            clean_session: feed.qos == 0,
            keep_alive: feed.keep_alive,
            max_packet,
        };
        let Decode::Json(json) = &feed.decode;
        Ok(Self {
            decoder: Decoder::new(&feed.points, json),
            columns: feed.columns(),
            dial,
            stats: Arc::default(),
            session: None,
            subscribed: false,
            subscribing: None,
            acks: Acks::default(),
            batch: Batch::default(),
            feed,
        })
    }

    async fn subscribe(&mut self, link: &mut Link) -> Result<(), Fault> {
        let qos = if self.feed.qos == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce };
        let filters =
            self.feed.topics.iter().map(|path| SubscribeFilter { path: path.clone(), qos });
        let subscribe = Subscribe { pkid: SUBSCRIBE_ID, filters: filters.collect() };
        link.send(&Packet::Subscribe(subscribe))?;
        let deadline = Instant::now() + SUBSCRIBE_TIMEOUT;
        self.subscribing = Some(deadline);
        // Messages of a kept session may come before the confirmation. They are left for
        // `read`, which then also sees the confirmation.
        while self.subscribing.is_some() && link.peek_kind() != Some(PUBLISH_KIND) {
            if let Some(incoming) = link.packet()? {
                self.control(incoming, link)?;
            } else {
                link.turn(Reading::On, Some(deadline)).await?;
                self.check_subscribed(link)?;
            }
        }
        Ok(())
    }

    fn check_subscribed(&self, link: &mut Link) -> Result<(), Fault> {
        match self.subscribing {
            Some(deadline) if deadline <= Instant::now() => {
                self.stats.add(Counter::Timeouts, 1);
                Err(link.fail("the broker does not confirm the subscription".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Takes a packet that is no message.
    fn control(&mut self, incoming: Incoming, link: &mut Link) -> Result<(), Fault> {
        let Incoming::Packet(Packet::SubAck(ack)) = incoming else {
            self.stats.add(Counter::BadReplies, 1);
            return Ok(());
        };
        if let Some(text) = refused_filters(&ack, &self.feed) {
            return Err(link.fail(text));
        }
        if ack.return_codes.contains(&SubscribeReasonCode::Success(QoS::AtMostOnce))
            && self.feed.qos == 1
        {
            tracing::warn!(url = %self.feed.url, "the broker grants QoS 0 only");
            self.stats.set_error(Some("the broker grants QoS 0 only".to_owned()));
        }
        self.subscribing = None;
        self.subscribed = true;
        Ok(())
    }

    /// Takes one packet: a message becomes rows, and where it wants an acknowledgement, that
    /// is noted in its place.
    fn take(
        &mut self,
        incoming: Incoming,
        rows: &mut TableBuilder,
        link: &mut Link,
    ) -> Result<(), Fault> {
        let pkid = match incoming {
            Incoming::Packet(Packet::Publish(publish)) => {
                if publish.qos == QoS::ExactlyOnce {
                    return Err(link.fail("the broker sent QoS 2, which was not asked".into()));
                }
                self.stats.add(Counter::Replies, 1);
                if let Err(why) = self.append(&publish, rows, link.heard()) {
                    self.reject(why);
                }
                (publish.qos == QoS::AtLeastOnce).then_some(publish.pkid)
            }
            Incoming::Oversize { pkid, size } => {
                self.stats.add(Counter::Replies, 1);
                let max = self.feed.max_packet;
                self.reject(format!("a message of {size} bytes, more than `max_packet: {max}`"));
                pkid
            }
            other @ Incoming::Packet(_) => return self.control(other, link),
        };
        let Some(pkid) = pkid else { return Ok(()) };
        if self.acks.waiting.len() >= UNSETTLED_MAX {
            return Err(link.fail("the broker has more in flight than it has ids".into()));
        }
        if self.batch.rows > 0 {
            self.batch.acks = true;
            self.acks.with_next(pkid);
        } else if let Some(pkid) = self.acks.with_last(pkid) {
            link.send(&Packet::PubAck(PubAck::new(pkid)))?;
        }
        Ok(())
    }

    fn append(
        &mut self,
        publish: &Publish,
        rows: &mut TableBuilder,
        arrived: Instant,
    ) -> Result<(), String> {
        let topic = std::str::from_utf8(&publish.topic).map_err(|e| e.to_string())?;
        if !self.feed.topics.iter().any(|filter| concerns(filter, topic)) {
            return Err(format!(
                "a message on `{topic}`, which no filter asks for: the session has an older \
                 subscription"
            ));
        }
        self.decoder
            .read(&publish.payload)
            .map_err(|why| format!("a message on `{topic}` cannot be read: {why}"))?;
        let origin = Origin { topic, qos: publish.qos as u8, retained: publish.retain, arrived };
        let before = rows.len();
        let timeless = self.decoder.append(rows, origin);
        self.batch.rows += rows.len() - before;
        if self.batch.rows > 0 && self.batch.since.is_none() {
            self.batch.since = Some(arrived);
        }
        if timeless > 0 {
            self.stats.add(Counter::BadReplies, timeless);
            self.stats
                .set_error(Some(format!("a message on `{topic}` has a row without its time")));
        }
        Ok(())
    }

    fn reject(&self, why: String) {
        self.stats.add(Counter::Rejected, 1);
        tracing::debug!(url = %self.feed.url, why, "message passed over");
        self.stats.set_error(Some(why));
    }

    /// Appends what is there and waits for more until the batch is due.
    async fn fill(&mut self, link: &mut Link, rows: &mut TableBuilder) -> Result<(), Fault> {
        let enough = usize::try_from(self.feed.batch_rows).unwrap_or(usize::MAX);
        loop {
            while self.batch.rows < enough {
                let Some(incoming) = link.packet()? else {
                    break;
                };
                self.take(incoming, rows, link)?;
            }
            self.check_subscribed(link)?;
            let due = self.batch.since.map(|since| since + self.feed.linger.duration());
            if self.batch.rows >= enough || due.is_some_and(|due| due <= Instant::now()) {
                return Ok(());
            }
            if due.is_some() && self.batch.acks && self.acks.as_full_as_ever() {
                return Ok(());
            }
            let until = due.into_iter().chain(self.subscribing).min();
            link.turn(Reading::On, until).await?;
        }
    }

    /// Ends the batch; the receipt is for its messages that want to be acknowledged.
    fn close(&mut self) -> Option<Receipt> {
        let batch = std::mem::take(&mut self.batch);
        batch.acks.then(|| self.acks.receipt())
    }
}

impl South for MqttSouth {
    fn points(&self) -> &[Point] {
        &self.columns
    }

    fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    fn connect(&mut self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            self.session = None;
            self.subscribing = None;
            self.batch.acks = false;
            // Ids of the old connection mean nothing on the new one. The broker offers again
            // what it was not told.
            self.acks.forget();
            let (mut link, present) = Link::dial(&self.dial, Arc::clone(&self.stats)).await?;
            if !present || !self.subscribed {
                self.subscribe(&mut link).await?;
            }
            self.session = Some(Session::start(link, Reading::Off));
            Ok(())
        })
    }

    fn read<'a>(
        &'a mut self,
        rows: &'a mut TableBuilder,
    ) -> BoxFuture<'a, Result<Option<Receipt>, Fault>> {
        Box::pin(async move {
            let mut lent = Lent::take(self);
            let Some(session) = &lent.session else {
                return Err(Fault::Link("not connected".to_owned()));
            };
            let mut link: Held<'_> = session.hold().await;
            let filled = lent.south.fill(&mut link, rows).await;
            drop(link);
            match filled {
                // What was read before the fault is given out first; the fault comes again.
                Err(_) if lent.south.batch.rows > 0 => Ok(lent.south.close()),
                Err(fault) => {
                    lent.session = None;
                    Err(fault)
                }
                Ok(()) => Ok(lent.south.close()),
            }
        })
    }

    fn settle(&mut self, receipt: Receipt) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let lent = Lent::take(self);
            let Some(session) = &lent.session else {
                return Ok(());
            };
            let mut link = session.hold().await;
            while let Some(pkid) = lent.south.acks.settle(receipt) {
                link.send(&Packet::PubAck(PubAck::new(pkid)))?;
            }
            // What the socket does not take at once goes out while reading.
            link.push().await
        })
    }
}

/// The session while a call uses it; goes back when the call ends or is dropped.
struct Lent<'a> {
    south: &'a mut MqttSouth,
    session: Option<Session>,
}

impl<'a> Lent<'a> {
    fn take(south: &'a mut MqttSouth) -> Self {
        let session = south.session.take();
        Self { south, session }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.south.session = self.session.take();
    }
}

/// Packet ids of one connection that wait for their rows to be durable, in the order in which
/// the messages came: acknowledgements keep that order (4.6).
#[derive(Debug, Default)]
struct Acks {
    waiting: VecDeque<(Receipt, u16)>,
    /// The last receipt that was given out. Counts on over connections, so that a receipt of an
    /// older one acknowledges nothing.
    last: Option<Receipt>,
    /// Most ids that ever waited on this connection.
    most: usize,
}

impl Acks {
    fn next(&self) -> Receipt {
        Receipt(self.last.map_or(0, |last| last.0 + 1))
    }

    /// Notes an id that is settled with the batch that is open.
    fn with_next(&mut self, pkid: u16) {
        self.waiting.push_back((self.next(), pkid));
    }

    /// Notes the id of a message without rows, which is settled with what came before it;
    /// gives it back where nothing waits, so that it can be acknowledged at once.
    fn with_last(&mut self, pkid: u16) -> Option<u16> {
        match self.waiting.back() {
            None => Some(pkid),
            Some((receipt, _)) => {
                self.waiting.push_back((*receipt, pkid));
                None
            }
        }
    }

    /// True where as many ids wait as ever did. A broker sends only so many messages before it
    /// wants acknowledgements, and does not say how many. When it has sent them all, at least
    /// as many wait as ever: then it is no use to wait for more.
    fn as_full_as_ever(&mut self) -> bool {
        self.most = self.most.max(self.waiting.len());
        self.waiting.len() == self.most
    }

    fn receipt(&mut self) -> Receipt {
        let receipt = self.next();
        self.last = Some(receipt);
        receipt
    }

    /// Takes the next id that is settled by `receipt`.
    fn settle(&mut self, receipt: Receipt) -> Option<u16> {
        let (of, pkid) = *self.waiting.front()?;
        if of > receipt {
            return None;
        }
        self.waiting.pop_front();
        Some(pkid)
    }

    fn forget(&mut self) {
        self.waiting.clear();
        self.most = 0;
    }
}

/// True where a subscription to `filter` asks for `topic`.
fn concerns(filter: &str, topic: &str) -> bool {
    let filter = match filter.strip_prefix("$share/") {
        Some(shared) => shared.split_once('/').map_or(shared, |(_, filter)| filter),
        None => filter,
    };
    matches(topic, filter)
}

/// Names the filters that the broker refused, where there are any.
fn refused_filters(ack: &SubAck, feed: &MqttFeed) -> Option<String> {
    let refused: Vec<_> = feed
        .topics
        .iter()
        .zip(&ack.return_codes)
        .filter(|(_, code)| **code == SubscribeReasonCode::Failure)
        .map(|(topic, _)| format!("`{topic}`"))
        .collect();
    if ack.pkid != SUBSCRIBE_ID || ack.return_codes.len() != feed.topics.len() {
        return Some("the broker confirmed another subscription".to_owned());
    }
    (!refused.is_empty())
        .then(|| format!("the broker refused the subscription to {}", refused.join(", ")))
}
