//! One connection to a broker: the socket, keep-alive, and packets in and out.
//!
//! The packets are rumqttc's; its event loop is not used. That loop owns a queue that it clears
//! when a session is lost, reconnects by itself thousands of times a second, ends on one large
//! message, and wakes a task for each publish. Here the store is the only queue, the caller alone
//! reconnects, and whoever delivers or reads drives the socket itself.
//!
//! Everything that waits is cancel safe: what was received or is to be sent stays in the link.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rumqttc::{ConnAck, Connect, ConnectReturnCode, Packet};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::inbox::{Inbox, Incoming};
use crate::border::Fault;
use crate::stats::{Counter, LinkState, Stats};
use crate::types::{MqttUrl, Span};

/// How long the TCP connection and the CONNACK may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Packets that the keeper may put aside for the next user of the link. A sink has at most 65,535
/// acknowledgements outstanding; more than that was never asked for.
const KEPT_MAX: usize = 65_535;
/// CONNACK (2.2.1).
const CONNACK_KIND: u8 = 2;
/// Nothing but a CONNACK, a SUBACK or acknowledgements is expected by a sink.
pub(crate) const CONTROL_PACKET_MAX: usize = 4096;

/// What a connection is made with.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) url: MqttUrl,
    pub(crate) client_id: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// False: the broker keeps the session while we are away.
    pub(crate) clean_session: bool,
    pub(crate) keep_alive: Span,
    /// Larger messages of the broker are passed over.
    pub(crate) max_packet: usize,
}

/// When to ping, and when silence means that the far side is gone. Pure; fed with instants.
#[derive(Debug)]
struct Pulse {
    interval: Duration,
    sent: Instant,
    heard: Instant,
    pong_due: Option<Instant>,
    /// A ping went out while nobody was reading, so its answer may be in the socket unseen.
    unread: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Beat {
    Wait,
    Ping,
    Dead,
}

impl Pulse {
    fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, sent: now, heard: now, pong_due: None, unread: false }
    }

    /// The broker gets half an interval for its answer, so that a dead peer is noticed within one
    /// and a half intervals, as the broker does with us (3.1.2.10).
    fn patience(&self) -> Duration {
        self.interval / 2
    }

    fn due(&self) -> Instant {
        self.pong_due.unwrap_or_else(|| self.sent.min(self.heard) + self.interval)
    }

    fn beat(&mut self, now: Instant, reading: bool) -> Beat {
        if now < self.due() {
            return Beat::Wait;
        }
        if self.pong_due.is_some() && reading && !self.unread {
            return Beat::Dead;
        }
        self.unread = !reading;
        self.pong_due = Some(now + self.patience());
        Beat::Ping
    }

    fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pong_due = None;
        self.unread = false;
    }
}

/// Whether [`Link::turn`] takes bytes from the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Yes, and silence of the broker is noticed.
    On,
    /// No: whoever consumes is busy, and TCP tells the broker to wait. Pings are still sent.
    Off,
}

/// What ended a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Bytes came in or went out.
    Moved,
    /// The given instant came first.
    Expired,
}

/// A connection after its CONNACK.
pub(crate) struct Link {
    socket: TcpStream,
    inbox: Inbox,
    out: BytesMut,
    kept: VecDeque<Incoming>,
    prompt: bool,
    pulse: Pulse,
    fault: Option<Fault>,
    stats: Arc<Stats>,
}

impl Link {
    /// Connects and waits for the broker's consent; also tells whether the broker had a session of
    /// ours. Whatever fails is a [`Fault::Link`]: users and rights of a broker change without us.
    pub(crate) async fn dial(dial: &Dial, stats: Arc<Stats>) -> Result<(Self, bool), Fault> {
        stats.set_state(LinkState::Connecting);
        let made = timeout(CONNECT_TIMEOUT, Self::handshake(dial, Arc::clone(&stats))).await;
        let made = made.unwrap_or_else(|_| {
            Err(format!("{} did not answer within {CONNECT_TIMEOUT:?}", dial.url))
        });
        match made {
            Ok(made) => {
                stats.add(Counter::Connects, 1);
                stats.set_state(LinkState::Up);
                stats.set_error(None);
                Ok(made)
            }
            Err(text) => Err(down(&stats, text)),
        }
    }

    async fn handshake(dial: &Dial, stats: Arc<Stats>) -> Result<(Self, bool), String> {
        let url = &dial.url;
        let socket = TcpStream::connect((url.host.as_str(), url.port))
            .await
            .map_err(|error| format!("no connection to {url}: {error}"))?;
        // Acknowledgements are small and somebody waits for each of them.
        socket.set_nodelay(true).map_err(|error| format!("{url}: {error}"))?;
        let mut link = Self {
            socket,
            inbox: Inbox::new(dial.max_packet),
            out: BytesMut::new(),
            kept: VecDeque::new(),
            prompt: true,
            pulse: Pulse::new(dial.keep_alive.duration(), Instant::now()),
            fault: None,
            stats,
        };
        link.send(&Packet::Connect(connect_packet(dial))).map_err(|fault| fault.to_string())?;
        loop {
            link.move_bytes(Reading::On).await?;
            if link.peek_kind().is_some_and(|kind| kind != CONNACK_KIND) {
                return Err(format!("{url} answered CONNECT with something else: no MQTT broker?"));
            }
            let packet =
                link.inbox.next().map_err(|e| format!("{url} sent a CONNACK that is none: {e}"))?;
            match packet {
                None => {}
                Some(Incoming::Packet(Packet::ConnAck(ConnAck { code, session_present }))) => {
                    return match refusal(code) {
                        None => Ok((link, session_present && !dial.clean_session)),
                        Some(why) => Err(format!("{url} refused the connection: {why}")),
                    };
                }
                Some(other) => return Err(format!("{url} answered CONNECT with {other:?}")),
            }
        }
    }

    /// Queues a packet; [`Link::turn`] sends it.
    pub(crate) fn send(&mut self, packet: &Packet) -> Result<(), Fault> {
        match packet.write(&mut self.out, usize::MAX) {
            Ok(_) => Ok(()),
            Err(error) => Err(Fault::Config(format!("a packet cannot be written: {error}"))),
        }
    }

    /// Says whether to confirm to TCP at once what was received, which costs a system call a read.
    ///
    /// A broker that leaves Nagle's algorithm on, as mosquitto does, holds its next small packets
    /// back until the one before is confirmed, and the kernel takes up to 40 ms for that where
    /// nothing goes out that it could go with. Not prompt is right where something does.
    pub(crate) fn set_prompt(&mut self, prompt: bool) {
        self.prompt = prompt;
    }

    /// Bytes that wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len()
    }

    /// When the last bytes came from the broker.
    pub(crate) fn heard(&self) -> Instant {
        self.pulse.heard
    }

    /// The fault that ended this link.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Ends the link: it answers with this fault from now on.
    pub(crate) fn fail(&mut self, text: String) -> Fault {
        let fault = down(&self.stats, text);
        self.fault = Some(fault.clone());
        fault
    }

    /// The kind (2.2.1) of the packet that [`Link::packet`] takes next, where it has begun.
    pub(crate) fn peek_kind(&self) -> Option<u8> {
        self.inbox.peek_kind()
    }

    /// Takes the next packet that was received. Ping responses are taken care of here.
    pub(crate) fn packet(&mut self) -> Result<Option<Incoming>, Fault> {
        if let Some(kept) = self.kept.pop_front() {
            return Ok(Some(kept));
        }
        loop {
            match self.inbox.next() {
                Ok(Some(Incoming::Packet(Packet::PingResp))) => {}
                Ok(incoming) => return Ok(incoming),
                Err(error) => {
                    self.stats.add(Counter::BadReplies, 1);
                    // Where the next packet begins is not known any longer.
                    self.inbox.clear();
                    return Err(self.fail(format!("the broker broke the protocol: {error}")));
                }
            }
        }
    }

    /// Waits until bytes moved or `until` has come. Sends what is queued, takes what arrives, pings
    /// where it is time, and fails where the broker is gone.
    pub(crate) async fn turn(
        &mut self,
        reading: Reading,
        until: Option<Instant>,
    ) -> Result<Turn, Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        loop {
            match self.pulse.beat(Instant::now(), reading == Reading::On) {
                Beat::Wait => {}
                Beat::Ping => self.send(&Packet::PingReq)?,
                Beat::Dead => {
                    let silence = self.pulse.heard.elapsed().as_secs();
                    self.stats.add(Counter::Timeouts, 1);
                    let text = format!("the broker has been silent for {silence} s");
                    return Err(self.fail(text));
                }
            }
            let due = self.pulse.due();
            let wake = until.map_or(due, |until| until.min(due));
            let moved = tokio::select! {
                biased;
                moved = self.move_bytes(reading) => Some(moved),
                () = sleep_until(wake) => None,
            };
            match moved {
                Some(Ok(())) => return Ok(Turn::Moved),
                Some(Err(text)) => return Err(self.fail(text)),
                None if until.is_some_and(|until| until <= Instant::now()) => {
                    return Ok(Turn::Expired);
                }
                None => {}
            }
        }
    }

    /// Sends as much of what is queued as the socket takes at once, without waiting.
    pub(crate) async fn push(&mut self) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let pushed = poll_fn(|cx| Poll::Ready(self.poll_push(cx))).await;
        pushed.map(drop).map_err(|text| self.fail(text))
    }

    /// Looks after the link while nobody uses it, until it fails. Packets are put aside.
    pub(crate) async fn keep(&mut self, reading: Reading) -> Fault {
        loop {
            if let Err(fault) = self.turn(reading, None).await {
                return fault;
            }
            if reading == Reading::Off {
                continue;
            }
            loop {
                // Not `packet`: that would hand out what was put aside before.
                match self.inbox.next() {
                    Ok(None) => break,
                    Ok(Some(Incoming::Packet(Packet::PingResp))) => {}
                    Ok(Some(_)) if self.kept.len() >= KEPT_MAX => {
                        return self.fail("the broker sends what nobody asked for".to_owned());
                    }
                    Ok(Some(incoming)) => self.kept.push_back(incoming),
                    Err(error) => {
                        return self.fail(format!("the broker broke the protocol: {error}"));
                    }
                }
            }
        }
    }

    async fn move_bytes(&mut self, reading: Reading) -> Result<(), String> {
        poll_fn(|cx| {
            // What arrived is taken first: it may acknowledge what a broken socket cannot send.
            let pulled = reading == Reading::On && self.poll_pull(cx)?;
            match self.poll_push(cx) {
                Ok(pushed) if pulled || pushed => Poll::Ready(Ok(())),
                Ok(_) => Poll::Pending,
                Err(_) if pulled => Poll::Ready(Ok(())),
                Err(text) => Poll::Ready(Err(text)),
            }
        })
        .await
    }

    fn poll_pull(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let read = pin!(self.socket.read_buf(self.inbox.room()));
        match read.poll(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err("the broker closed the connection".to_owned()),
            Poll::Ready(Ok(count)) => {
                self.stats.add(Counter::BytesIn, count as u64);
                self.pulse.heard(Instant::now());
                if self.prompt {
                    confirm_now(&self.socket);
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(format!("the connection broke: {error}")),
        }
    }

    fn poll_push(&mut self, cx: &mut Context<'_>) -> Result<bool, String> {
        let mut moved = 0;
        while !self.out.is_empty() {
            match Pin::new(&mut self.socket).poll_write(cx, &self.out) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) => {
                    self.out.advance(count);
                    moved += count;
                }
                Poll::Ready(Err(error)) => return Err(format!("the connection broke: {error}")),
            }
        }
        if moved > 0 {
            self.stats.add(Counter::BytesOut, moved as u64);
            self.pulse.sent = Instant::now();
        }
        Ok(moved > 0)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A polite end (3.14), where it fits between two packets. Closing says the same otherwise.
        if self.fault.is_none() && self.out.is_empty() {
            self.socket.try_write(&[0xE0, 0x00]).ok();
        }
    }
}

/// Sends the TCP acknowledgement that is due. Only a matter of speed, so that a kernel without it
/// does no harm.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn confirm_now(socket: &TcpStream) {
    socket.set_quickack(true).ok();
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn confirm_now(_: &TcpStream) {}

fn connect_packet(dial: &Dial) -> Connect {
    let mut connect = Connect::new(dial.client_id.as_str());
    connect.clean_session = dial.clean_session;
    // Rounded up, so that a broker never expects us earlier than we ping.
    let millis = dial.keep_alive.duration().as_millis();
    connect.keep_alive = u16::try_from(millis.div_ceil(1000)).unwrap_or(u16::MAX);
    match (&dial.username, &dial.password) {
        (Some(user), Some(password)) => {
            connect.set_credentials(user.as_str(), password.clone().into_bytes());
        }
        (Some(user), None) => {
            connect.set_username(user.as_str());
        }
        (None, _) => {}
    }
    connect
}

/// What a return code (3.2.2.3) means for a person, or `None` for consent.
fn refusal(code: ConnectReturnCode) -> Option<&'static str> {
    match code {
        ConnectReturnCode::Success => None,
        ConnectReturnCode::RefusedProtocolVersion => Some("it does not speak MQTT 3.1.1"),
        ConnectReturnCode::BadClientId => Some("it does not accept the client id"),
        ConnectReturnCode::ServiceUnavailable => Some("its service is unavailable"),
        ConnectReturnCode::BadUserNamePassword => Some("user name or password is wrong"),
        ConnectReturnCode::NotAuthorized => Some("the client is not authorized"),
    }
}

/// Counts and shows the loss of a link.
fn down(stats: &Stats, text: String) -> Fault {
    stats.add(Counter::LinkFaults, 1);
    stats.set_state(LinkState::Down);
    stats.set_error(Some(text.clone()));
    Fault::Link(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_is_noticed_within_one_and_a_half_intervals() {
        let start = Instant::now();
        let mut pulse = Pulse::new(30 * SECOND, start);
        assert_eq!(pulse.beat(start + 29 * SECOND, true), Beat::Wait);
        assert_eq!(pulse.beat(start + 30 * SECOND, true), Beat::Ping);
        assert_eq!(pulse.beat(start + 44 * SECOND, true), Beat::Wait);
        assert_eq!(pulse.beat(start + 45 * SECOND, true), Beat::Dead);
        pulse.heard(start + 45 * SECOND);
        assert_eq!(pulse.beat(start + 46 * SECOND, true), Beat::Ping, "nothing sent for 46 s");
    }

    #[test]
    fn an_unread_answer_is_no_silence() {
        let start = Instant::now();
        let mut pulse = Pulse::new(10 * SECOND, start);
        assert_eq!(pulse.beat(start + 10 * SECOND, false), Beat::Ping);
        pulse.sent = start + 10 * SECOND;
        assert_eq!(pulse.beat(start + 15 * SECOND, false), Beat::Ping);
        // Reading begins again: one more ping, and its answer is waited for.
        assert_eq!(pulse.beat(start + 20 * SECOND, true), Beat::Ping);
        assert_eq!(pulse.beat(start + 25 * SECOND, true), Beat::Dead);
    }
}
