use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::sleep;

use super::*;
use crate::modbus::peer::with_crc;
use crate::modbus::transaction::Exception;
use crate::serial::Parity;
use crate::south::modbus::RegisterKind;
use crate::stats::Stats;

const LIMIT: Duration = Duration::from_millis(200);
const MS: Duration = Duration::from_millis(1);

fn hex(text: &str) -> Vec<u8> {
    text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn port(baud: u32) -> Timing {
    let parity = Parity::Even;
    let path = "/dev/ttyS1".to_owned();
    Timing::of_port(&PortSettings { path, baud, parity, data_bits: 8, stop_bits: 1 })
}

/// A line at 9,600 bits a second, and its far end.
fn line(echo: Echo) -> (LineConnection<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(4096);
    (LineConnection::new(ours, port(9600), echo), theirs)
}

const fn holding(unit: u8, start: u16, quantity: u16) -> ReadRequest {
    ReadRequest { unit, kind: RegisterKind::Holding, start, quantity }
}

async fn receive(peer: &mut DuplexStream) -> [u8; 8] {
    let mut request = [0; 8];
    peer.read_exact(&mut request).await.unwrap();
    request
}

/// A reply in which each register holds its own address.
fn addresses(request: [u8; 8]) -> Vec<u8> {
    let word = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
    let mut body = vec![request[0], request[1], u8::try_from(2 * word(4)).unwrap()];
    body.extend((0..word(4)).flat_map(|i| (word(2) + i).to_be_bytes()));
    with_crc(&body)
}

/// Asks once, of a peer that answers with `pieces`, each after its pause.
async fn ask(
    request: ReadRequest,
    echo: Echo,
    pieces: &[(Duration, &[u8])],
) -> (Result<Vec<u8>, Failure>, Stats) {
    let (mut line, mut theirs) = line(echo);
    let pieces: Vec<_> = pieces.iter().map(|(pause, bytes)| (*pause, bytes.to_vec())).collect();
    let peer = tokio::spawn(async move {
        receive(&mut theirs).await;
        for (pause, bytes) in pieces {
            sleep(pause).await;
            theirs.write_all(&bytes).await.unwrap();
        }
        theirs
    });
    let (stats, mut data) = (Stats::default(), Vec::new());
    let outcome = line.read(&request, LIMIT, &mut data, Tally(&[&stats])).await;
    peer.await.unwrap();
    (outcome.map(|_| data), stats)
}

/// Serial guide, clause 2.5.1.1: 3.5 characters of 11 bits, and 1.75 ms above 19,200.
#[test]
fn silence_follows_from_the_speed() {
    assert_eq!(port(9600).silence, Duration::from_nanos(4_010_416));
    assert_eq!(port(19_200).silence, Duration::from_nanos(2_005_208));
    assert_eq!(port(38_400).silence, Duration::from_micros(1750));
    assert_eq!(port(300).gap, Duration::from_nanos(128_333_333), "never less than the silence");
}

/// Field case A20: an exception without CRC, and the next request.
#[tokio::test(start_paused = true)]
async fn a20_an_exception_without_crc_spoils_nothing() {
    let (mut line, mut theirs) = line(Echo::Auto);
    let request = ReadRequest { unit: 10, kind: RegisterKind::Coil, start: 0x04A1, quantity: 1 };
    let (stats, mut data) = (Stats::default(), Vec::new());
    let tally = [&stats];
    for _ in 0..3 {
        let asked = line.read(&request, LIMIT, &mut data, Tally(&tally));
        let answered = async {
            assert_eq!(receive(&mut theirs).await[..], hex("0A 01 04 A1 00 01 AC 63"));
            theirs.write_all(&hex("0A 81 02")).await.unwrap();
            Instant::now()
        };
        let (outcome, at) = tokio::join!(asked, answered);
        assert_eq!(outcome, Err(Failure::BadReply(BadReply::Crc)));
        assert!(at.elapsed() < LIMIT, "told by the silence, not by the deadline");
        let asked = line.read(&request, LIMIT, &mut data, Tally(&tally));
        let answered = async {
            assert_eq!(receive(&mut theirs).await[..], hex("0A 01 04 A1 00 01 AC 63"));
            theirs.write_all(&with_crc(&hex("0A 01 01 01"))).await.unwrap();
        };
        let (outcome, ()) = tokio::join!(asked, answered);
        outcome.unwrap();
        assert_eq!(data, [1]);
    }
    assert_eq!((stats.get(Counter::CrcErrors), stats.get(Counter::Replies)), (3, 3));
    assert_eq!(stats.get(Counter::Probes), 0);
    let (outcome, _) = ask(request, Echo::Auto, &[(MS, &hex("0A 81 02 B0 53"))]).await;
    assert_eq!(outcome, Err(Failure::Exception(Exception(2))));
}

/// Field case A21: stray bytes, before the request is sent and after.
#[tokio::test(start_paused = true)]
async fn a21_stray_bytes_are_not_the_replys() {
    let (mut line, mut theirs) = line(Echo::Auto);
    let (stats, mut data) = (Stats::default(), Vec::new());
    let tally = [&stats];
    theirs.write_all(&[0xFF]).await.unwrap();
    let request = holding(1, 7, 2);
    let asked = line.read(&request, LIMIT, &mut data, Tally(&tally));
    let answered = async {
        let reply = addresses(receive(&mut theirs).await);
        theirs.write_all(&reply).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(asked, answered);
    outcome.unwrap();
    assert_eq!(data, [0, 7, 0, 8]);
    assert_eq!(stats.get(Counter::NoiseBytes), 1);
    let reply = with_crc(&hex("01 03 04 00 07 00 08"));
    for stray in ["FF", "00", "01 03", "7F 7F 7F 7F 7F 7F 7F 7F 7F"] {
        let bytes = [hex(stray), reply.clone()].concat();
        let (outcome, _) = ask(holding(1, 7, 2), Echo::Auto, &[(MS, &bytes)]).await;
        assert_eq!(outcome.unwrap(), [0, 7, 0, 8], "{stray}");
    }
}

/// Field case A22 with its bytes, in one piece and in several.
#[tokio::test(start_paused = true)]
async fn a22_an_echo_is_stripped() {
    let request = holding(1, 0x04B2, 1);
    let (echo, reply) = (hex("01 03 04 B2 00 01 25 1D"), with_crc(&hex("01 03 02 12 34")));
    let glued = [echo.clone(), reply.clone()].concat();
    for mode in [Echo::Auto, Echo::Strip] {
        for cut in 1..glued.len() {
            let pieces = [(MS, &glued[..cut]), (MS * 10, &glued[cut..])];
            let (outcome, _) = ask(request, mode, &pieces).await;
            assert_eq!(outcome.unwrap(), [0x12, 0x34], "cut at {cut}");
        }
    }
    let (outcome, _) = ask(request, Echo::Auto, &[(MS, &reply)]).await;
    assert_eq!(outcome.unwrap(), [0x12, 0x34], "no echo is no error");
    let (outcome, _) = ask(request, Echo::Strip, &[(MS, &reply)]).await;
    assert_eq!(outcome, Err(Failure::BadReply(BadReply::NoEcho)));
    // An adapter that echoes although `none` says not: not a reply, but no harm either.
    let (outcome, stats) = ask(request, Echo::None, &[(MS, &glued)]).await;
    assert_eq!(outcome.unwrap(), [0x12, 0x34]);
    assert_eq!(stats.get(Counter::WrongUnit), 1);
    // The echo alone: nobody is there.
    let (outcome, _) = ask(request, Echo::Auto, &[(MS, &echo)]).await;
    assert_eq!(outcome, Err(Failure::Timeout(None)));
}

/// Field cases A23 and A24: frames of others while we wait.
#[tokio::test(start_paused = true)]
async fn a23_a24_frames_of_others_are_skipped() {
    let reply = with_crc(&hex("01 04 04 00 00 00 0A"));
    let request = ReadRequest { unit: 1, kind: RegisterKind::Input, start: 0, quantity: 2 };
    for (other, dropped) in [
        ("0B 04 04 00 00 00 0A D1 83", Dropped::Unit(11)),
        ("00 06 00 01 00 03 99 DA", Dropped::Unit(0)),
        ("00 10 00 01 00 02 04 00 01 00 02 E6 9E", Dropped::Unit(0)),
        ("0A 03 10 04 00 02 80 71", Dropped::Request(10)),
    ] {
        let (outcome, stats) = ask(request, Echo::Auto, &[(MS, &hex(other))]).await;
        assert_eq!(outcome, Err(Failure::Timeout(Some(dropped))), "{other}");
        assert_eq!(stats.get(Counter::WrongUnit), 1);
        let glued = [hex(other), reply.clone()].concat();
        for cut in 1..glued.len() {
            let pieces = [(MS, &glued[..cut]), (MS, &glued[cut..])];
            let (outcome, stats) = ask(request, Echo::Auto, &pieces).await;
            assert_eq!(outcome.unwrap(), [0, 0, 0, 10], "{other} cut at {cut}");
            assert_eq!(stats.get(Counter::WrongUnit), 1);
        }
    }
}

/// Fault F22: what a reply of ours can have wrong.
#[tokio::test(start_paused = true)]
async fn f22_all_that_can_be_wrong_is_classified() {
    let good = with_crc(&hex("01 03 04 00 07 00 08"));
    let request = holding(1, 7, 2);
    let bad = |what| Err(Failure::BadReply(what));
    let cases = [
        (with_crc(&hex("01 03 02 00 07")), bad(BadReply::ByteCount { expected: 4, found: 2 })),
        (
            with_crc(&hex("01 03 06 00 07 00 08 00 09")),
            bad(BadReply::ByteCount { expected: 4, found: 6 }),
        ),
        (hex("01 03 04 00 07 00 08 00 00"), bad(BadReply::Crc)),
        (good[..6].to_vec(), bad(BadReply::Crc)),
        (with_crc(&hex("01 83 06")), Err(Failure::Exception(Exception(6)))),
        (with_crc(&hex("01 04 04 00 07 00 08")), Err(Failure::Timeout(Some(Dropped::Function(4))))),
        (with_crc(&hex("02 03 04 00 07 00 08")), Err(Failure::Timeout(Some(Dropped::Unit(2))))),
        (Vec::new(), Err(Failure::Timeout(None))),
        (vec![0xFF; 300], Err(Failure::Timeout(None))),
        (good.clone(), Ok(hex("00 07 00 08"))),
        ([good.clone(), good].concat(), Ok(hex("00 07 00 08"))),
    ];
    for (bytes, right) in cases {
        let (outcome, _) = ask(request, Echo::Auto, &[(MS, &bytes)]).await;
        assert_eq!(outcome, right, "{bytes:02X?}");
    }
}

/// Each request waits for 3.5 characters of silence after what came before it.
#[tokio::test(start_paused = true)]
async fn requests_keep_their_distance() {
    let (mut line, mut theirs) = line(Echo::Auto);
    let peer = tokio::spawn(async move {
        let mut last: Option<Instant> = None;
        for _ in 0..10 {
            let request = receive(&mut theirs).await;
            if let Some(last) = last {
                assert!(last.elapsed() >= port(9600).silence, "{:?}", last.elapsed());
            }
            theirs.write_all(&addresses(request)).await.unwrap();
            last = Some(Instant::now());
        }
    });
    for start in 0..10 {
        let mut data = Vec::new();
        line.read(&holding(1, start, 1), LIMIT, &mut data, Tally(&[])).await.unwrap();
    }
    peer.await.unwrap();
}

/// A unit that answers as `pattern` says, for each request in turn: after how long, or never. It
/// answers in order, and knows one read function only where `polite` is false: it says nothing to
/// others.
fn spawn_unit(
    theirs: DuplexStream,
    polite: bool,
    mut pattern: impl FnMut(u64) -> Option<Duration> + Send + 'static,
) {
    let (queue, mut replies) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(64);
    let (mut receiver, mut sender) = tokio::io::split(theirs);
    tokio::spawn(async move {
        let mut request = [0; 8];
        let mut n = 0;
        while receiver.read_exact(&mut request).await.is_ok() {
            n += 1;
            let Some(after) = pattern(n) else { continue };
            let reply = match request[1] {
                3 => addresses(request),
                _ if !polite => continue,
                function => with_crc(&[request[0], function | 0x80, 1]),
            };
            queue.send((Instant::now() + after, reply)).await.unwrap();
        }
    });
    tokio::spawn(async move {
        while let Some((at, reply)) = replies.recv().await {
            tokio::time::sleep_until(at).await;
            if sender.write_all(&reply).await.is_err() {
                return;
            }
        }
    });
}

/// Asks 10,000 times for one of ten registers of unit 1, alike but for the address, and says how
/// many values came. Panics at the first value that is of another register.
async fn ten_thousand(mut line: LineConnection<DuplexStream>) -> (u64, Stats) {
    let (stats, mut data, mut values) = (Stats::default(), Vec::new(), 0);
    let tally = [&stats];
    for n in 0..10_000_u16 {
        let start = 100 + n % 10;
        if line.read(&holding(1, start, 1), LIMIT, &mut data, Tally(&tally)).await.is_ok() {
            assert_eq!(data, start.to_be_bytes(), "request {n}");
            values += 1;
        }
    }
    (values, stats)
}

/// Fault F21 and field case A17: every third reply comes 50 ms after its deadline, within the late
/// window. Nothing else is lost, and nothing is asked twice.
#[tokio::test(start_paused = true)]
async fn f21_late_replies_are_waited_out() {
    let (line, theirs) = line(Echo::Auto);
    spawn_unit(theirs, true, |n| Some(if n % 3 == 0 { LIMIT + 50 * MS } else { MS }));
    let (values, stats) = ten_thousand(line).await;
    assert_eq!((values, stats.get(Counter::Timeouts)), (6667, 3333));
    assert_eq!((stats.get(Counter::StaleReplies), stats.get(Counter::Probes)), (3333, 0));
}

/// Fault F21: replies that come when the next request, or the one after it, is under way.
#[tokio::test(start_paused = true)]
async fn f21_replies_beyond_the_window_are_nobodys_value() {
    for late in [310, 350, 399, 450, 620, 700] {
        let (line, theirs) = line(Echo::Auto);
        spawn_unit(theirs, true, move |n| Some(if n % 7 == 0 { late * MS } else { MS }));
        let (values, stats) = ten_thousand(line).await;
        assert!(values > 5000, "{values} at {late} ms");
        assert!(stats.get(Counter::Probes) > 1000, "{late} ms");
        assert!(stats.get(Counter::StaleReplies) > 1000, "{late} ms");
    }
}

/// Fault F21: a buffering converter that answers each request with the reply to the one before.
#[tokio::test(start_paused = true)]
async fn f21_a_unit_one_behind_gives_no_wrong_value() {
    let (line, mut theirs) = line(Echo::Auto);
    tokio::spawn(async move {
        let mut before: Option<Vec<u8>> = None;
        let mut request = [0; 8];
        while theirs.read_exact(&mut request).await.is_ok() {
            let reply = match request[1] {
                3 => addresses(request),
                function => with_crc(&[1, function | 0x80, 1]),
            };
            if let Some(before) = before.replace(reply) {
                theirs.write_all(&before).await.unwrap();
            }
        }
    });
    let (values, stats) = ten_thousand(line).await;
    assert_eq!(values, 0);
    assert!(stats.get(Counter::StaleReplies) > 9000);
}

/// A lost reply costs one reading, or where the unit does not answer functions that it does not
/// know, three.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_recovered_from() {
    for (polite, most) in [(true, 1), (false, 3)] {
        let (mut line, theirs) = line(Echo::Auto);
        spawn_unit(theirs, polite, |n| (n != 5).then_some(MS));
        let (mut data, mut lost) = (Vec::new(), 0);
        for start in 0..20 {
            let outcome = line.read(&holding(1, start, 1), LIMIT, &mut data, Tally(&[])).await;
            lost += usize::from(outcome.is_err());
        }
        assert_eq!(lost, most, "polite: {polite}");
    }
}

/// Reading 0 bytes is the end of the connection, at once, asked or not.
#[tokio::test(start_paused = true)]
async fn f24_the_end_of_the_stream_is_the_end_of_the_link() {
    let (mut line, theirs) = line(Echo::Auto);
    drop(theirs);
    let start = Instant::now();
    let failure = line.idle(Tally(&[])).await;
    assert!(matches!(failure, Failure::Link(_)), "{failure}");
    let outcome = line.read(&holding(1, 0, 1), LIMIT, &mut Vec::new(), Tally(&[])).await;
    assert!(matches!(outcome, Err(Failure::Link(_))), "{outcome:?}");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Fault F24: a line on which random bits flip gives right values or none.
#[tokio::test(start_paused = true)]
async fn f24_noise_gives_no_wrong_value() {
    let (line, mut theirs) = line(Echo::Auto);
    tokio::spawn(async move {
        let mut seed = 0x2545_F491_4F6C_DD1D_u64;
        let mut request = [0; 8];
        while theirs.read_exact(&mut request).await.is_ok() {
            let mut reply = match request[1] {
                3 => addresses(request),
                function => with_crc(&[1, function | 0x80, 1]),
            };
            for byte in &mut reply {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                if seed.is_multiple_of(20) {
                    *byte ^= 1 << (seed >> 32 & 7);
                }
            }
            if theirs.write_all(&reply).await.is_err() {
                return;
            }
        }
    });
    let (values, stats) = ten_thousand(line).await;
    assert!(values > 4000, "{values}");
    assert!(stats.get(Counter::CrcErrors) > 1000);
}
