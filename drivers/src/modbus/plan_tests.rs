use serde_json::json;

use super::*;
use crate::modbus::testing::{device, with};

/// (start, quantity, number of points) of each block.
fn shape(blocks: &[Block]) -> Vec<(u16, u16, usize)> {
    blocks.iter().map(|b| (b.start, b.quantity, b.points.len())).collect()
}

/// Field case A1: 63 values of 2 registers do not fit one request, and 125 is odd.
#[test]
fn a01_a_request_border_never_cuts_a_value() {
    let points: Vec<_> = (0..63)
        .map(|i| json!({ "register": "holding", "address": 12800 + 2 * i, "type": "u32" }))
        .collect();
    assert_eq!(shape(&plan(&device(&points))), [(12800, 124, 62), (12924, 2, 1)]);
}

/// Field case A2: 10 registers of text at 65524 and one register at 65534.
#[test]
fn a02_the_top_of_the_address_space_is_planned() {
    let device = device(&[
        json!({ "register": "holding", "address": 65524, "type": "string", "length": 10 }),
        json!({ "register": "holding", "address": 65534 }),
    ]);
    assert_eq!(shape(&plan(&device)), [(0xFFF4, 11, 2)]);
    assert!(device.problems().is_empty());
    let last = self::device(&[json!({ "register": "holding", "address": 65535 })]);
    assert_eq!(shape(&plan(&last)), [(65535, 1, 1)]);
    assert!(last.problems().is_empty());
}

#[test]
fn a02_a_value_past_the_top_is_named_and_left_out() {
    let device = device(&[
        json!({ "name": "energy", "register": "holding", "address": 65535, "type": "u32" }),
        json!({ "register": "holding", "address": 10 }),
    ]);
    assert_eq!(shape(&plan(&device)), [(10, 1, 1)]);
    let problems = device.problems();
    assert_eq!(problems.len(), 1);
    assert_eq!((problems[0].point_index, problems[0].field), (Some(0), "address"));
    assert!(problems[0].message.contains("`energy`"), "{}", problems[0].message);
    assert!(problems[0].message.contains("65535"), "{}", problems[0].message);
    assert!(problems[0].hint.contains("65534"), "{}", problems[0].hint);
}

/// Field case A5: 200 values with holes of 1 to 4 registers between them: 699 registers, of which
/// a request takes 125.
#[test]
fn a05_small_gaps_are_read_over() {
    let mut address = 0;
    let points: Vec<_> = (0..200)
        .map(|i| {
            let point = json!({ "register": "input", "address": address });
            address += 1 + (i % 4 + 1);
            point
        })
        .collect();
    let merged = plan(&with(json!({ "max_gap": 4 }), &points));
    assert!(merged.len() <= 10, "{} requests", merged.len());
    assert_eq!(merged.iter().map(|b| b.points.len()).sum::<usize>(), 200);
    let apart = with(json!({ "max_gap": 0 }), &points);
    assert_eq!(requests_per_cycle(&apart), 200);
}

#[test]
fn kinds_and_limits_keep_blocks_apart() {
    let device = with(
        json!({ "max_gap": 1, "max_registers": 4, "max_bits": 3 }),
        &[
            json!({ "register": "input", "address": 3 }),
            json!({ "register": "holding", "address": 0, "type": "u32" }),
            json!({ "register": "holding", "address": 3, "type": "u32" }),
            json!({ "register": "holding", "address": 5 }),
            json!({ "register": "holding", "address": 5, "bit": 3 }),
            json!({ "register": "holding", "address": 5, "bit": 4 }),
            json!({ "register": "coil", "address": 0 }),
            json!({ "register": "coil", "address": 2 }),
            json!({ "register": "coil", "address": 3 }),
        ],
    );
    let blocks = plan(&device);
    assert_eq!(
        shape(&blocks),
        [(0, 3, 2), (3, 1, 1), (0, 2, 1), (3, 3, 4), (3, 1, 1)],
        "coils, coils, holding, holding, input"
    );
    assert_eq!(blocks[3].points, [2, 3, 4, 5]);
}

/// Field case A6, as a plan: 11175 cannot be read.
#[test]
fn a06_holes_are_planned_around() {
    let device = device(&[
        json!({ "register": "holding", "address": 11174 }),
        json!({ "register": "holding", "address": 11176 }),
        json!({ "register": "holding", "address": 11177 }),
    ]);
    let blocks = plan(&device);
    assert_eq!(shape(&blocks), [(11174, 4, 3)]);
    let (left, right, between) = split(&device, &blocks[0]).unwrap();
    assert_eq!((left.start, left.quantity, left.points), (11174, 1, vec![0]));
    assert_eq!((right.start, right.quantity, right.points), (11176, 2, vec![1, 2]));
    assert_eq!(between, Hole { kind: RegisterKind::Holding, address: 11175, quantity: 1 });
    assert_eq!(between.to_string(), "holding 11175 cannot be read");
    assert_eq!(shape(&plan_around(&device, &[between])), [(11174, 1, 1), (11176, 2, 2)]);
}

#[test]
fn a_point_in_a_hole_is_asked_alone() {
    let device = device(&[
        json!({ "register": "holding", "address": 1 }),
        json!({ "register": "holding", "address": 2, "bit": 0 }),
        json!({ "register": "holding", "address": 2, "bit": 1 }),
        json!({ "register": "holding", "address": 3 }),
    ]);
    let hole = Hole { kind: RegisterKind::Holding, address: 2, quantity: 1 };
    assert_eq!(shape(&plan_around(&device, &[hole])), [(1, 1, 1), (2, 1, 2), (3, 1, 1)]);
    let other_kind = Hole { kind: RegisterKind::Input, ..hole };
    assert_eq!(shape(&plan_around(&device, &[other_kind])), [(1, 3, 4)]);
    let cut = Hole { quantity: 0, ..hole };
    assert_eq!(shape(&plan_around(&device, &[cut])), [(1, 1, 1), (2, 2, 3)]);
}

#[test]
fn what_cannot_be_read_apart_is_not_split() {
    let device = device(&[
        json!({ "register": "holding", "address": 8, "type": "u32" }),
        json!({ "register": "holding", "address": 9, "bit": 1 }),
    ]);
    let blocks = plan(&device);
    assert_eq!(shape(&blocks), [(8, 2, 2)]);
    assert_eq!(split(&device, &blocks[0]), None);
}

proptest::proptest! {
    /// Whatever the map: each point lies whole in one block, no block passes a limit or a gap.
    #[test]
    fn every_point_lies_whole_in_one_block(
        places in proptest::collection::vec((0_u16..400, 0_usize..4), 1..60),
        max_gap in 0_u16..10,
        max_registers in 4_u16..=125,
    ) {
        let types = ["u16", "u32", "f64", "i8"];
        let points: Vec<_> = places
            .iter()
            .map(|(address, of)| {
                json!({ "register": "holding", "address": 65136 - 4 + address, "type": types[*of] })
            })
            .collect();
        let fields = json!({ "max_gap": max_gap, "max_registers": max_registers });
        let device = with(fields, &points);
        let blocks = plan(&device);
        let mut found = vec![0; points.len()];
        for block in &blocks {
            assert!(block.quantity <= max_registers);
            let mut end = u32::from(block.start);
            for index in &block.points {
                let point = &device.points[*index];
                found[*index] += 1;
                assert!(point.address >= block.start && point.end() <= block.end());
                assert!(u32::from(point.address) <= end + u32::from(max_gap));
                end = end.max(point.end());
            }
            assert_eq!(end, block.end());
        }
        assert_eq!(found, vec![1; points.len()]);
    }
}

/// Field case A15: each poll group is planned by itself.
#[test]
fn a15_poll_groups_have_their_own_points() {
    let device = with(
        json!({ "polls": [
            { "name": "fast", "every": "1s" }, { "name": "slow", "every": "60s" },
            { "name": "once", "every": "on_connect" },
        ] }),
        &[
            json!({ "register": "holding", "address": 1 }),
            json!({ "register": "holding", "address": 2, "poll": "slow" }),
            json!({ "register": "holding", "address": 3, "poll": "fast" }),
            json!({ "register": "holding", "address": 4, "poll": "once" }),
        ],
    );
    assert_eq!(device.problems(), []);
    let names = |index: usize| -> Vec<String> {
        device.group(index).points.iter().map(|p| p.name.to_string()).collect()
    };
    assert_eq!(names(0), ["p0", "p2"]);
    assert_eq!(names(1), ["p1"]);
    assert_eq!(names(2), ["p3"]);
    assert_eq!(device.group(1).polls, device.polls[1..2]);
    assert_eq!(plan(&device.group(0)).len(), 1);
}
