use tokio::io::{DuplexStream, duplex};
use tokio::time::sleep;

use super::*;
use crate::south::modbus::RegisterKind;

const LIMIT: Duration = Duration::from_millis(100);

/// Three holding registers of unit 1 from 107: the example of the specification, section 6.3.
const REQUEST: ReadRequest =
    ReadRequest { unit: 1, kind: RegisterKind::Holding, start: 0x6B, quantity: 3 };

/// Sends `request` with id `transaction` to a peer that answers with `segments`, 1 ms apart.
async fn ask(
    request: ReadRequest,
    transaction: u16,
    tid_check: TidCheck,
    segments: &[&[u8]],
) -> (Result<Vec<u8>, Failure>, Stats) {
    let (ours, mut theirs) = duplex(4096);
    let segments: Vec<Vec<u8>> = segments.iter().map(|s| s.to_vec()).collect();
    let peer = tokio::spawn(async move {
        theirs.read_exact(&mut [0; 12]).await.unwrap();
        for segment in segments {
            theirs.write_all(&segment).await.unwrap();
            sleep(Duration::from_millis(1)).await;
        }
        theirs
    });
    let mut connection = Connection::new(ours, tid_check);
    let (stats, mut data) = (Stats::default(), Vec::new());
    let outcome = connection.read(transaction, &request, LIMIT, &mut data, Tally(&[&stats])).await;
    peer.await.unwrap();
    (outcome.map(|_| data), stats)
}

async fn strictly(segments: &[&[u8]]) -> (Result<Vec<u8>, Failure>, Stats) {
    ask(REQUEST, 7, TidCheck::Strict, segments).await
}

async fn receive_request(peer: &mut DuplexStream) -> [u8; 12] {
    let mut request = [0; 12];
    peer.read_exact(&mut request).await.unwrap();
    request
}

/// The answer of the specification's example: 555, 0, 100.
const GOOD: [u8; 15] = [0, 7, 0, 0, 0, 9, 1, 3, 6, 0x02, 0x2B, 0, 0, 0, 0x64];

#[tokio::test(start_paused = true)]
async fn the_example_of_the_specification() {
    let (outcome, stats) = strictly(&[&GOOD]).await;
    assert_eq!(outcome.unwrap(), [0x02, 0x2B, 0, 0, 0, 0x64]);
    assert_eq!((stats.get(Counter::Requests), stats.get(Counter::Replies)), (1, 1));
    assert_eq!((stats.get(Counter::BytesOut), stats.get(Counter::BytesIn)), (12, 15));
}

/// Field case A19: both frames come in one read; the first one is late.
#[tokio::test(start_paused = true)]
async fn a19_two_frames_in_one_segment() {
    let request = ReadRequest { unit: 0x32, kind: RegisterKind::Holding, start: 0, quantity: 4 };
    let both: Vec<u8> = [
        &[0x00, 0x0F, 0, 0, 0, 0x13, 0x32, 3, 0x10][..],
        &[0xEE; 16],
        &[0x00, 0x10, 0, 0, 0, 0x0B, 0x32, 3, 8, 0x49, 0x31, 0x13, 0x88, 0x3A, 0x83, 0x12, 0x6F],
    ]
    .concat();
    let expected = [0x49, 0x31, 0x13, 0x88, 0x3A, 0x83, 0x12, 0x6F];
    let (outcome, stats) = ask(request, 16, TidCheck::Strict, &[&both]).await;
    assert_eq!(outcome.unwrap(), expected);
    assert_eq!(stats.get(Counter::StaleReplies), 1);
    // The same bytes over three segments, cut inside headers and data.
    for (first, second) in [(3, 28), (12, 40), (1, 2), (25, 26)] {
        let parts = [&both[..first], &both[first..second], &both[second..]];
        let (outcome, _) = ask(request, 16, TidCheck::Strict, &parts).await;
        assert_eq!(outcome.unwrap(), expected, "cut at {first} and {second}");
    }
}

/// Field case A18: the socket still delivers the reply to 15 while 16 is asked.
#[tokio::test(start_paused = true)]
async fn a18_a_reply_is_never_taken_by_its_order() {
    let request = ReadRequest { unit: 1, kind: RegisterKind::Holding, start: 0x28, quantity: 0x28 };
    let reply = |id: u8, fill: u8| {
        let mut frame = vec![0, id, 0, 0, 0, 0x53, 1, 3, 0x50];
        frame.resize(9 + 80, fill);
        frame
    };
    let (ours, mut theirs) = duplex(4096);
    let mut connection = Connection::new(ours, TidCheck::Strict);
    let (stats, mut data) = (Stats::default(), Vec::new());
    let tally = [&stats];
    theirs.write_all(&reply(15, 0x15)).await.unwrap();
    let outcome = connection.read(16, &request, LIMIT, &mut data, Tally(&tally)).await;
    let dropped = Dropped::Stale { expected: 16, found: 15 };
    assert_eq!(outcome, Err(Failure::Timeout(Some(dropped))));
    assert_eq!(
        receive_request(&mut theirs).await,
        [0x00, 0x10, 0, 0, 0, 0x06, 0x01, 0x03, 0x00, 0x28, 0x00, 0x28]
    );
    // 16 comes late, while 17 is asked, and then 17 itself.
    theirs.write_all(&reply(16, 0x16)).await.unwrap();
    theirs.write_all(&reply(17, 0x17)).await.unwrap();
    connection.read(17, &request, LIMIT, &mut data, Tally(&tally)).await.unwrap();
    assert_eq!(data, [0x17; 80]);
    assert_eq!(stats.get(Counter::StaleReplies), 2);
}

/// Field case A17 and fault F21: every other reply comes 50 ms after its deadline, for 10,000
/// requests. None is taken for another one, and what is answered in time is taken.
#[tokio::test(start_paused = true)]
async fn a17_late_replies_are_dropped() {
    let (ours, mut theirs) = duplex(4096);
    let mut connection = Connection::new(ours, TidCheck::Strict);
    tokio::spawn(async move {
        loop {
            let request = receive_request(&mut theirs).await;
            let [t1, t0, _, _, _, _, _, _, s1, s0, _, _] = request;
            if s0 % 2 == 0 {
                sleep(LIMIT + Duration::from_millis(50)).await;
            }
            theirs.write_all(&[t1, t0, 0, 0, 0, 9, 1, 3, 6, s1, s0, 2, 3, 4, 5]).await.unwrap();
        }
    });
    let (stats, mut data) = (Stats::default(), Vec::new());
    let tally = [&stats];
    for start in 0..10_000_u16 {
        let (id, request) = (start.wrapping_add(65_000), ReadRequest { start, ..REQUEST });
        let outcome = connection.read(id, &request, LIMIT, &mut data, Tally(&tally)).await;
        if start % 2 == 0 {
            assert!(matches!(outcome, Err(Failure::Timeout(_))), "{outcome:?}");
        } else {
            outcome.unwrap();
            assert_eq!(data[..2], start.to_be_bytes());
        }
    }
    assert_eq!(stats.get(Counter::StaleReplies), 5000);
    assert_eq!(stats.get(Counter::Replies), 5000);
}

/// Fault F22: replies to the request that cannot be right, and what is wrong with them.
const BAD: [(&str, BadReply); 9] = [
    ("00 07 00 00 00 08 01 03 05 01 01 01 01 01", BadReply::ByteCount { expected: 6, found: 5 }),
    ("00 07 00 00 00 07 01 03 04 01 01 01 01", BadReply::ByteCount { expected: 6, found: 4 }),
    (
        "00 07 00 00 00 0B 01 03 08 01 01 01 01 01 01 01 01",
        BadReply::ByteCount { expected: 6, found: 8 },
    ),
    ("00 07 00 00 00 07 01 03 06 01 01 01 01", BadReply::DataLen { expected: 6, found: 4 }),
    (
        "00 07 00 00 00 0A 01 03 06 01 01 01 01 01 01 01",
        BadReply::DataLen { expected: 6, found: 7 },
    ),
    ("00 07 00 00 00 02 01 03", BadReply::DataLen { expected: 6, found: 0 }),
    ("00 07 00 00 00 01 01", BadReply::Empty),
    ("00 07 00 09 00 09 01 03 06 01 01 01 01 01 01", BadReply::Protocol(9)),
    ("00 07 00 00 00 02 01 83", BadReply::ExceptionLen(1)),
];

/// Fault F22: frames that are not the reply to the request, behind which it may still come.
const FOREIGN: [(&str, Dropped); 4] = [
    ("00 07 00 00 00 09 02 03 06 01 01 01 01 01 01", Dropped::Unit(2)),
    ("00 07 00 00 00 09 01 04 06 01 01 01 01 01 01", Dropped::Function(4)),
    ("00 07 00 00 00 03 01 84 02", Dropped::Function(0x84)),
    ("00 06 00 00 00 09 01 03 06 01 01 01 01 01 01", Dropped::Stale { expected: 7, found: 6 }),
];

fn hex(text: &str) -> Vec<u8> {
    text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn f22_replies_that_cannot_be_right() {
    for (bytes, what) in BAD {
        let (outcome, stats) = strictly(&[&hex(bytes)]).await;
        assert_eq!(outcome, Err(Failure::BadReply(what)), "{bytes}");
        assert_eq!((stats.get(Counter::BadReplies), stats.get(Counter::Replies)), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn f22_foreign_frames_are_dropped() {
    for (bytes, dropped) in FOREIGN {
        let frame = hex(bytes);
        let (outcome, stats) = strictly(&[&frame]).await;
        assert_eq!(outcome, Err(Failure::Timeout(Some(dropped))), "{bytes}");
        assert_eq!((stats.get(dropped.counter()), stats.get(Counter::Timeouts)), (1, 1));
        let (outcome, _) = strictly(&[&frame, &GOOD]).await;
        assert_eq!(outcome.unwrap(), GOOD[9..], "{bytes}");
    }
}

#[tokio::test(start_paused = true)]
async fn f22_bits_are_counted_in_bytes() {
    let request = ReadRequest { unit: 1, kind: RegisterKind::Coil, start: 0x13, quantity: 11 };
    let good = [0, 7, 0, 0, 0, 5, 1, 1, 2, 0xCD, 0x05];
    let (outcome, _) = ask(request, 7, TidCheck::Strict, &[&good]).await;
    assert_eq!(outcome.unwrap(), [0xCD, 0x05]);
    let (outcome, _) =
        ask(request, 7, TidCheck::Strict, &[&[0, 7, 0, 0, 0, 4, 1, 1, 1, 0xCD]]).await;
    let expected = BadReply::ByteCount { expected: 2, found: 1 };
    assert_eq!(outcome, Err(Failure::BadReply(expected)));
}

#[tokio::test(start_paused = true)]
async fn f22_half_a_frame_is_a_timeout_and_the_rest_is_dropped() {
    let (ours, mut theirs) = duplex(4096);
    let mut connection = Connection::new(ours, TidCheck::Strict);
    let (stats, mut data) = (Stats::default(), Vec::new());
    let tally = [&stats];
    theirs.write_all(&GOOD[..10]).await.unwrap();
    let outcome = connection.read(7, &REQUEST, LIMIT, &mut data, Tally(&tally)).await;
    assert_eq!(outcome, Err(Failure::Timeout(None)));
    theirs.write_all(&GOOD[10..]).await.unwrap();
    theirs.write_all(&[0, 8, 0, 0, 0, 9, 1, 3, 6, 8, 8, 8, 8, 8, 8]).await.unwrap();
    connection.read(8, &REQUEST, LIMIT, &mut data, Tally(&tally)).await.unwrap();
    assert_eq!(data, [8; 6]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_out_of_step_ends_the_connection() {
    for bytes in [&[0, 7, 0, 0, 1, 0, 1, 3][..], &[0, 7, 0, 0, 0, 0, 1, 3]] {
        let (outcome, _) = strictly(&[bytes]).await;
        assert!(matches!(outcome, Err(Failure::Link(_))), "{outcome:?}");
    }
    let flood = [0, 6, 0, 0, 0, 3, 1, 0x83, 2].repeat(DROPPED_MAX + 1);
    let (outcome, _) = strictly(&[&flood]).await;
    assert!(matches!(outcome, Err(Failure::Link(_))), "{outcome:?}");
    let (ours, theirs) = duplex(64);
    drop(theirs);
    let mut connection = Connection::new(ours, TidCheck::Strict);
    let outcome = connection.read(7, &REQUEST, LIMIT, &mut Vec::new(), Tally(&[])).await;
    assert!(matches!(outcome, Err(Failure::Link(_))), "{outcome:?}");
}

/// A peer that takes no bytes: half a request may be on the wire, so the connection is of no use.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_taken_ends_the_connection() {
    let (ours, _theirs) = duplex(5);
    let mut connection = Connection::new(ours, TidCheck::Strict);
    let outcome = connection.read(7, &REQUEST, LIMIT, &mut Vec::new(), Tally(&[])).await;
    assert!(matches!(outcome, Err(Failure::Link(_))), "{outcome:?}");
}

/// Fault F23: all 255 codes have their reason, and the words of the specification.
#[tokio::test(start_paused = true)]
async fn f23_exceptions_have_their_reasons() {
    for code in 1..=255_u8 {
        let (outcome, stats) = strictly(&[&[0, 7, 0, 0, 0, 3, 1, 0x83, code]]).await;
        let failure = outcome.unwrap_err();
        assert_eq!(failure, Failure::Exception(Exception(code)));
        assert_eq!(stats.get(Counter::Exceptions), 1);
        let reason = failure.reason().to_string();
        let expected = match code {
            1 => "illegal_function",
            2 => "illegal_address",
            3 => "illegal_value",
            4 => "device_failure",
            5 | 6 => "busy",
            8 => "memory_parity",
            10 => "gateway_path",
            11 => "gateway_target",
            _ => &format!("exception_{code:02x}"),
        };
        assert_eq!(reason, expected);
    }
    assert_eq!(Exception(2).to_string(), "exception 02 (illegal data address)");
}

#[tokio::test(start_paused = true)]
async fn lenient_takes_another_id_but_nothing_else_wrong() {
    let mut other = GOOD;
    other[1] = 0;
    let (outcome, _) = ask(REQUEST, 7, TidCheck::Lenient, &[&other]).await;
    assert_eq!(outcome.unwrap(), GOOD[9..]);
    // A late reply to a longer request is dropped, not called bad.
    let longer = [0, 6, 0, 0, 0, 11, 1, 3, 8, 1, 1, 1, 1, 1, 1, 1, 1];
    let (outcome, stats) = ask(REQUEST, 7, TidCheck::Lenient, &[&longer, &GOOD]).await;
    assert_eq!(outcome.unwrap(), GOOD[9..]);
    assert_eq!(stats.get(Counter::StaleReplies), 1);
    let (outcome, _) = ask(REQUEST, 7, TidCheck::Strict, &[&other]).await;
    assert!(matches!(outcome, Err(Failure::Timeout(Some(Dropped::Stale { .. })))), "{outcome:?}");
}
