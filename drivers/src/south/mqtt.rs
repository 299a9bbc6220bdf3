//! A feed of JSON messages from an MQTT 3.1.1 broker.

use arrow_schema::DataType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mqtt::{self, Common};
use crate::point::Point;
use crate::types::{Bytes, MqttUrl, Name, Secret, Span};

/// A feed of messages.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MqttFeed {
    /// The broker.
    pub url: MqttUrl,
    /// Topic filters to subscribe to.
    pub topics: Vec<String>,
    /// 0: at most once. 1: acknowledged after the rows are durable.
    #[serde(default = "default_qos")]
    pub qos: u8,
    /// The session's client id; left out, `tidegate-<gateway>-<device>`.
    #[serde(default)]
    pub client_id: Option<String>,
    /// User name.
    #[serde(default)]
    pub username: Option<String>,
    /// Password, by reference.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Keep-alive interval.
    #[serde(default = "default_keep_alive")]
    pub keep_alive: Span,
    /// Largest message that is accepted; a larger one is counted and passed over.
    #[serde(default = "default_max_packet")]
    pub max_packet: Bytes,
    /// How a message becomes rows.
    #[serde(default)]
    pub decode: Decode,
    /// Rows of one batch at most.
    #[serde(default = "default_batch_rows")]
    pub batch_rows: u32,
    /// How long a batch waits for more rows.
    #[serde(default = "default_linger")]
    pub linger: Span,
    /// First pause before the connection is made again; doubles with jitter.
    #[serde(default = "default_backoff_min")]
    pub backoff_min: Span,
    /// Longest pause before the connection is made again.
    #[serde(default = "default_backoff_max")]
    pub backoff_max: Span,
    /// The fields that become columns.
    pub points: Vec<FieldPoint>,
}

/// How a message becomes rows.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decode {
    /// One JSON object, or an array of objects, a message.
    Json(JsonDecode),
}

impl Default for Decode {
    fn default() -> Self {
        Self::Json(JsonDecode::default())
    }
}

/// How JSON becomes rows.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonDecode {
    /// Path to the row's own time: RFC 3339 text, or a number in `time_unit`.
    #[serde(default)]
    pub time: Option<String>,
    /// Unit of a numeric time.
    #[serde(default)]
    pub time_unit: EpochUnit,
    /// Path to the array of rows; left out, the message is one row or an array of rows.
    #[serde(default)]
    pub rows: Option<String>,
}

/// The unit of a numeric time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EpochUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    #[default]
    Ms,
    /// Microseconds.
    Us,
}

/// One field of a message.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FieldPoint {
    /// The column's name.
    pub name: Name,
    /// The column's type.
    #[serde(rename = "type")]
    pub value_type: FieldType,
    /// Path to the field, dots between the keys; the name where left out.
    #[serde(default)]
    pub path: Option<String>,
    /// The value's unit, for people.
    #[serde(default)]
    pub unit: Option<String>,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    /// true or false.
    Bool,
    /// Whole number, 64 bit.
    I64,
    /// Whole number without sign, 64 bit.
    U64,
    /// Floating point, 64 bit.
    F64,
    /// Text.
    String,
}

impl FieldType {
    /// The Arrow type of the column.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::I64 => DataType::Int64,
            Self::U64 => DataType::UInt64,
            Self::F64 => DataType::Float64,
            Self::String => DataType::Utf8,
        }
    }
}

/// Columns that every table has, or that every feed has: no point may have such a name.
const RESERVED: [&str; 8] = [
    "time",
    "device",
    "quality",
    "seq",
    "received_at",
    "topic",
    "qos",
    "retained",
];

impl MqttFeed {
    /// Everything that makes this feed impossible: the field, what is wrong, what would be right.
    pub fn problems(&self) -> Vec<(&'static str, String, String)> {
        let common = Common {
            client_id: self.client_id.as_deref(),
            username: self.username.as_deref(),
            password: self.password.as_ref(),
            qos: self.qos,
            keep_alive: self.keep_alive,
            max_packet: self.max_packet,
            backoff_min: self.backoff_min,
            backoff_max: self.backoff_max,
        };
        let mut problems = common.problems();
        self.topic_problems(&mut problems);
        self.point_problems(&mut problems);
        let Decode::Json(json) = &self.decode;
        for path in json.time.iter().chain(&json.rows) {
            if path.split('.').any(str::is_empty) {
                problems.push((
                    "decode",
                    format!("the path `{path}` has an empty key"),
                    "write the keys with one dot between them".to_owned(),
                ));
            }
        }
        if self.batch_rows == 0 {
            problems.push((
                "batch_rows",
                "a batch has at least one row".to_owned(),
                "write 1 or more; 1000 is the default".to_owned(),
            ));
        }
        problems
    }

    fn topic_problems(&self, problems: &mut Vec<mqtt::Problem>) {
        if self.topics.is_empty() {
            problems.push((
                "topics",
                "the feed subscribes to nothing".to_owned(),
                "name at least one topic filter, such as `line/+/event`".to_owned(),
            ));
        }
        for (index, topic) in self.topics.iter().enumerate() {
            if let Some(fault) = mqtt::filter_fault(topic) {
                problems.push((
                    "topics",
                    format!("the topic filter `{topic}` {fault}"),
                    "`+` stands for one level, `#` for all that follow".to_owned(),
                ));
            }
            if self.topics[..index].contains(topic) {
                problems.push((
                    "topics",
                    format!("`{topic}` is named twice"),
                    "name each filter once".to_owned(),
                ));
            }
        }
    }

    fn point_problems(&self, problems: &mut Vec<mqtt::Problem>) {
        if self.points.is_empty() {
            problems.push((
                "points",
                "no field of a message becomes a column".to_owned(),
                "name at least one point".to_owned(),
            ));
        }
        for (index, point) in self.points.iter().enumerate() {
            let name = point.name.as_str();
            if RESERVED.contains(&name) {
                problems.push((
                    "points",
                    format!("`{name}` is a column that every feed has"),
                    format!("rename the point and keep `path: {name}`"),
                ));
            }
            if self.points[..index].iter().any(|p| p.name == point.name) {
                problems.push((
                    "points",
                    format!("two points have the name `{name}`"),
                    "names are unique within a device".to_owned(),
                ));
            }
            if point
                .path
                .as_deref()
                .is_some_and(|p| p.split('.').any(str::is_empty))
            {
                problems.push((
                    "points",
                    format!("the path of `{name}` has an empty key"),
                    "write the keys with one dot between them".to_owned(),
                ));
            }
        }
    }

    /// The columns of the feed's table: the points, then `topic`, `qos`, `retained`.
    pub fn columns(&self) -> Vec<Point> {
        let points = self.points.iter().map(|p| Point {
            unit: p.unit.clone(),
            ..Point::new(p.name.as_str(), p.value_type.data_type())
        });
        points
            .chain([
                Point::metadata("topic", DataType::Utf8),
                Point::metadata("qos", DataType::UInt8),
                Point::metadata("retained", DataType::Boolean),
            ])
            .collect()
    }
}

fn default_qos() -> u8 {
    1
}

fn default_keep_alive() -> Span {
    Span::from_secs(30)
}

fn default_max_packet() -> Bytes {
    Bytes::new(256 << 10)
}

fn default_batch_rows() -> u32 {
    1000
}

fn default_linger() -> Span {
    Span::from_millis(20)
}

fn default_backoff_min() -> Span {
    Span::from_secs(1)
}

fn default_backoff_max() -> Span {
    Span::from_secs(300)
}

#[cfg(feature = "io")]
pub use io::MqttSouth;

#[cfg(feature = "io")]
mod io {
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
            let qos = if self.feed.qos == 0 {
                QoS::AtMostOnce
            } else {
                QoS::AtLeastOnce
            };
            let filters = self.feed.topics.iter().map(|path| SubscribeFilter {
                path: path.clone(),
                qos,
            });
            let subscribe = Subscribe {
                pkid: SUBSCRIBE_ID,
                filters: filters.collect(),
            };
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
            if ack
                .return_codes
                .contains(&SubscribeReasonCode::Success(QoS::AtMostOnce))
                && self.feed.qos == 1
            {
                tracing::warn!(url = %self.feed.url, "the broker grants QoS 0 only");
                self.stats
                    .set_error(Some("the broker grants QoS 0 only".to_owned()));
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
                    self.reject(format!(
                        "a message of {size} bytes, more than `max_packet: {max}`"
                    ));
                    pkid
                }
                other @ Incoming::Packet(_) => return self.control(other, link),
            };
            if !rows.is_empty() && self.batch.since.is_none() {
                self.batch.since = Some(link.heard());
            }
            let Some(pkid) = pkid else { return Ok(()) };
            if self.acks.waiting.len() >= UNSETTLED_MAX {
                return Err(link.fail("the broker has more in flight than it has ids".into()));
            }
            if self.batch.since.is_some() {
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
            if !self
                .feed
                .topics
                .iter()
                .any(|filter| concerns(filter, topic))
            {
                return Err(format!(
                    "a message on `{topic}`, which no filter asks for: the session has an older \
                     subscription"
                ));
            }
            self.decoder
                .read(&publish.payload)
                .map_err(|why| format!("a message on `{topic}` cannot be read: {why}"))?;
            let origin = Origin {
                topic,
                qos: publish.qos as u8,
                retained: publish.retain,
                arrived,
            };
            let timeless = self.decoder.append(rows, origin);
            if timeless > 0 {
                self.stats.add(Counter::BadReplies, timeless);
                self.stats.set_error(Some(format!(
                    "a message on `{topic}` has a row without its time"
                )));
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
            if !rows.is_empty() && self.batch.since.is_none() {
                self.batch.since = Some(Instant::now());
            }
            loop {
                while rows.len() < enough {
                    let Some(incoming) = link.packet()? else {
                        break;
                    };
                    self.take(incoming, rows, link)?;
                }
                self.check_subscribed(link)?;
                let due = self
                    .batch
                    .since
                    .map(|since| since + self.feed.linger.duration());
                if rows.len() >= enough || due.is_some_and(|due| due <= Instant::now()) {
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
                    Err(_) if !rows.is_empty() => Ok(lent.south.close()),
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
        (!refused.is_empty()).then(|| {
            format!(
                "the broker refused the subscription to {}",
                refused.join(", ")
            )
        })
    }
}
