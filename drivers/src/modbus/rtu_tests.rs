use super::*;
use crate::modbus::peer::with_crc;
use crate::south::modbus::RegisterKind;

fn hex(text: &str) -> Vec<u8> {
    text.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// Two registers of unit 1 from 0x6B.
const REQUEST: ReadRequest =
    ReadRequest { unit: 1, kind: RegisterKind::Holding, start: 0x6B, quantity: 2 };

fn expected(echo: bool) -> Expected {
    Expected { sent: encode(&REQUEST), data_len: REQUEST.reply_len(), echo }
}

fn good() -> Vec<u8> {
    with_crc(&hex("01 03 04 02 2B 00 64"))
}

/// What is found when `bytes` come in one piece, silence follows, and `REQUEST` was asked; and how
/// much of it was noise.
fn found(bytes: &[u8], echo: bool) -> (Vec<String>, usize) {
    let mut decoder = Decoder::default();
    decoder.space()[..bytes.len()].copy_from_slice(bytes);
    decoder.filled(bytes.len());
    let mut all = Vec::new();
    for quiet in [false, true] {
        while let Some(found) = decoder.next(Some(&expected(echo)), quiet) {
            all.push(match found {
                Found::Frame(frame) => format!("{} {:02X?}", frame.unit, frame.pdu),
                other => format!("{other:?}"),
            });
        }
    }
    assert!(decoder.is_empty());
    (all, decoder.take_noise())
}

/// CRCs as they stand in field cases A20, A22, A23 and A24, and in captures of A29.
#[test]
fn crcs_are_those_of_the_field() {
    for frame in [
        "0A 01 04 A1 00 01 AC 63",
        "0A 81 02 B0 53",
        "01 03 04 B2 00 01 25 1D",
        "0B 04 04 00 00 00 0A D1 83",
        "00 06 00 01 00 03 99 DA",
        "00 10 00 01 00 02 04 00 01 00 02 E6 9E",
        "0A 03 10 04 00 02 80 71",
        "0A 03 10 6A 00 02 E1 AC",
    ] {
        let frame = hex(frame);
        let (body, crc) = frame.split_at(frame.len() - 2);
        assert_eq!(crc16(body).to_le_bytes(), crc, "{frame:02X?}");
        assert!(is_whole(&frame));
    }
    let request = ReadRequest { unit: 10, kind: RegisterKind::Holding, start: 0x1004, quantity: 2 };
    assert_eq!(encode(&request).to_vec(), hex("0A 03 10 04 00 02 80 71"));
}

#[test]
fn a_reply_is_found_wherever_it_is_cut() {
    let good = good();
    for cut in 1..good.len() {
        let mut decoder = Decoder::default();
        for (part, whole) in [(&good[..cut], false), (&good[cut..], true)] {
            decoder.space()[..part.len()].copy_from_slice(part);
            decoder.filled(part.len());
            let found = decoder.next(Some(&expected(true)), false);
            let frame = Found::Frame(Frame { unit: 1, pdu: &good[1..7] });
            assert_eq!(found, whole.then_some(frame), "cut at {cut}");
        }
    }
}

#[test]
fn noise_before_and_behind_is_skipped() {
    let right = format!("1 {:02X?}", &good()[1..7]);
    for noise in ["FF", "00", "01", "01 03", "00 00 00", "FE FF 01 03 04", "0B 04 04 00 00"] {
        let bytes = [hex(noise), good()].concat();
        assert_eq!(found(&bytes, true), (vec![right.clone()], hex(noise).len()), "{noise}");
    }
    let bytes = [good(), hex("FF")].concat();
    assert_eq!(found(&bytes, true), (vec![right], 1));
}

/// Frames of others are recognised whole, glued to each other and to the reply.
#[test]
fn a24_frames_of_others_are_frames() {
    let others = [
        "00 06 00 01 00 03 99 DA",
        "00 10 00 01 00 02 04 00 01 00 02 E6 9E",
        "0B 04 04 00 00 00 0A D1 83",
        "0A 81 02 B0 53",
    ];
    let mut bytes: Vec<u8> = others.iter().flat_map(|frame| hex(frame)).collect();
    bytes.extend(good());
    let (all, noise) = found(&bytes, true);
    assert_eq!((all.len(), noise), (5, 0), "{all:?}");
    assert_eq!(all[0], "0 [06, 00, 01, 00, 03]");
    assert_eq!(all[3], "10 [81, 02]");
    assert_eq!(all[4], format!("1 {:02X?}", &good()[1..7]));
}

/// An echo, which could be the beginning of a reply, is skipped whole; where none is expected, it
/// is a request of somebody.
#[test]
fn a22_an_echo_is_not_a_reply() {
    let sent = encode(&REQUEST);
    let bytes = [&sent[..], &good()].concat();
    let right = format!("1 {:02X?}", &good()[1..7]);
    assert_eq!(found(&bytes, true), (vec!["Echo".to_owned(), right.clone()], 0));
    let (all, noise) = found(&bytes, false);
    assert_eq!((&all[0][..], &all[1], noise), ("1 [03, 00, 6B, 00, 02]", &right, 0));
    // Half an echo, then silence.
    assert_eq!(found(&sent[..5], true), (vec!["Damaged".to_owned()], 0));
}

#[test]
fn what_begins_like_the_reply_is_damaged() {
    let mut flipped = good();
    for at in 2..flipped.len() {
        flipped[at] ^= 0x10;
        let (all, _) = found(&flipped, true);
        assert_eq!(all, ["Damaged"], "byte {at}");
        flipped[at] ^= 0x10;
        assert_eq!(found(&flipped[..at], true).0, ["Damaged"], "cut at {at}");
    }
    assert_eq!(found(&hex("01 83 02"), true).0, ["Damaged"]);
    // From another unit it is only noise.
    assert_eq!(found(&hex("02 83 02"), true), (Vec::new(), 3));
}

/// Whatever comes, bytes are neither lost nor kept for ever, and only a frame with the right CRC is
/// found.
#[test]
fn random_bytes_are_survived() {
    use proptest::prelude::*;
    proptest!(|(bytes in proptest::collection::vec(any::<u8>(), 0..BUFFER_LEN))| {
        let mut decoder = Decoder::default();
        decoder.space()[..bytes.len()].copy_from_slice(&bytes);
        decoder.filled(bytes.len());
        while let Some(found) = decoder.next(Some(&expected(true)), false) {
            if let Found::Frame(frame) = found {
                let body = [&[frame.unit], frame.pdu].concat();
                let adu = with_crc(&body);
                prop_assert!(bytes.windows(adu.len()).any(|w| w == adu));
            }
        }
        prop_assert!(!decoder.space().is_empty());
        while decoder.next(Some(&expected(true)), true).is_some() {}
        prop_assert!(decoder.is_empty());
    });
}
