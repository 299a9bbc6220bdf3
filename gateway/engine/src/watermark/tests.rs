//! The watermark by tables of marks: expected ones by hand.

use super::*;

fn tick(marks: &mut Watermark, now: i64) {
    marks.advance(now);
    marks.follow();
}

fn seen(marks: &mut Watermark, device: &str, time: i64) -> Option<i64> {
    let source = marks.source(0, device);
    marks.observe(source, time);
    marks.current()
}

#[test]
fn the_slowest_active_source_holds_it() {
    let mut marks = Watermark::new(1, 2, 100, 1000);
    for device in ["a", "b", "c"] {
        marks.declare(0, device, None, true);
    }
    assert_eq!(seen(&mut marks, "a", 50), None);
    assert_eq!(seen(&mut marks, "b", 10), None);
    assert_eq!(seen(&mut marks, "c", 10), Some(8));
    assert_eq!(seen(&mut marks, "b", 20), Some(8));
    assert_eq!(seen(&mut marks, "c", 30), Some(18));
    // Never back: not by an older row, not by a source that joins behind.
    assert_eq!(seen(&mut marks, "b", 5), Some(18));
    assert_eq!(seen(&mut marks, "d", 1), Some(18));
    assert_eq!(seen(&mut marks, "d", 40), Some(18));
    assert_eq!(seen(&mut marks, "b", 60), Some(28));
}

#[test]
fn an_idle_source_lets_go_and_the_clock_is_followed_when_all_are() {
    let mut marks = Watermark::new(1, 2, 100, 1000);
    marks.declare(0, "a", None, true);
    marks.declare(0, "b", None, true);
    seen(&mut marks, "a", 990);
    tick(&mut marks, 1050);
    seen(&mut marks, "a", 1040);
    assert_eq!(marks.next_idle(), Some(1100));
    tick(&mut marks, 1099);
    assert_eq!(marks.current(), None);
    tick(&mut marks, 1100);
    assert_eq!(marks.current(), Some(1038), "b never spoke and is idle");
    tick(&mut marks, 1149);
    assert_eq!(marks.current(), Some(1038));
    tick(&mut marks, 1150);
    assert_eq!(marks.current(), Some(1148), "now - lateness");
    assert_eq!(marks.next_idle(), None);
    assert_eq!(marks.clock_reaches(1200), Some(1202));
    // a wakes with an old stamp: nothing goes back, and it holds again.
    assert_eq!(seen(&mut marks, "a", 1100), Some(1148));
    tick(&mut marks, 1160);
    assert_eq!(marks.current(), Some(1148));
}

/// What is put off changes nothing: after each row the watermark is the least of all marks, or
/// what it was, and rows are judged by it.
#[test]
fn putting_off_changes_nothing() {
    let (mut marks, mut model) = (Watermark::new(1, 3, 1_000, 0), HashMap::new());
    let mut expected = None;
    // A linear congruence (Knuth's MMIX): the same rows in each run.
    let mut random = 7_u64;
    for row in 0..20_000_i64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let device = random >> 33 & (if row < 10_000 { 3 } else { 31 });
        let time = row + i64::try_from(random >> 40 & 15).unwrap();
        let end = time - 8;
        assert_eq!(marks.has_passed(end), expected.is_some_and(|mark| end <= mark), "{row}");
        let source = marks.source(0, &device.to_string());
        marks.observe(source, time);
        let high = model.entry(device).or_insert(time);
        *high = time.max(*high);
        expected = expected.max(model.values().min().map(|low| low - 3));
        if (random >> 50).is_multiple_of(8) {
            assert_eq!(marks.current(), expected, "{row}");
        }
        if (random >> 55).is_multiple_of(8) {
            marks.catch_up();
        }
    }
    assert_eq!(marks.current(), expected);
}

/// A stream whose windows of 60 close 10 later feeds this one: when nothing has come for long,
/// the clock may be right only about what is 70 old.
#[test]
fn the_clock_is_followed_at_the_lag_of_what_comes_before() {
    let mut marks = Watermark::new(1, 2, 100, 1000);
    marks.set_lag(70);
    seen(&mut marks, "windows", 900);
    tick(&mut marks, 1100);
    assert_eq!(marks.current(), Some(1028), "1100 - 2 - 70");
    assert_eq!(marks.clock_reaches(1060), Some(1132));
    // A window that began at 1040 is told at 1110, and is not late.
    assert_eq!(seen(&mut marks, "windows", 1040), Some(1038));
}

#[test]
fn without_any_source_the_clock_means_nothing() {
    let mut marks = Watermark::new(1, 0, 10, 0);
    tick(&mut marks, 1_000_000);
    assert_eq!(marks.current(), None);
    assert_eq!(seen(&mut marks, "late riser", 5), Some(5));
}

#[test]
fn clock_steps_move_no_mark() {
    let hour = 3_600_000_000;
    let mut marks = Watermark::new(1, 0, 10_000_000, 2 * hour);
    seen(&mut marks, "a", 2 * hour);
    // Back by an hour: no mark moves, and the source is idle after its 10 s, not after 1 h 10 s.
    tick(&mut marks, hour);
    assert_eq!(marks.current(), Some(2 * hour));
    assert_eq!(marks.next_idle(), Some(hour + 10_000_000));
    tick(&mut marks, hour + 10_000_000);
    assert_eq!(marks.next_idle(), None);
    assert_eq!(marks.current(), Some(2 * hour), "now is behind the mark");
    // From 1970 to 2039: the watermark follows once, and can go on.
    let in_2039 = 2_177_452_800_000_000;
    tick(&mut marks, in_2039);
    assert_eq!(marks.current(), Some(in_2039));
    assert_eq!(seen(&mut marks, "a", in_2039 + 1), Some(in_2039 + 1));
}

#[test]
fn a62_a_source_far_behind_holds_only_while_it_catches_up() {
    let hour = 3_600;
    let now = 50 * hour;
    let mut marks = Watermark::new(1, 0, 10, now).with_behind_max(Some(hour));
    for device in ["live", "slow", "dead"] {
        marks.declare(0, device, None, true);
    }
    // `dead` has no battery for its clock, `slow` sends what it kept while its link was down.
    seen(&mut marks, "live", now);
    seen(&mut marks, "slow", now - 3 * hour);
    assert_eq!(seen(&mut marks, "dead", 100), Some(100));
    for second in 1..=10 {
        tick(&mut marks, now + second);
        seen(&mut marks, "live", now + second);
        seen(&mut marks, "slow", now - 3 * hour + 600 * second);
        assert_eq!(seen(&mut marks, "dead", 100 + second), Some(100 + second), "still held");
    }
    tick(&mut marks, now + 11);
    assert_eq!(marks.current(), Some(now - 3 * hour + 600 * 10), "`slow` gains and holds");
    for second in 11..40 {
        tick(&mut marks, now + second);
        seen(&mut marks, "dead", 100 + second);
        seen(&mut marks, "live", now + second);
        seen(&mut marks, "slow", (now - 3 * hour + 600 * second).min(now + second));
    }
    assert_eq!(marks.current(), Some(now + 39), "both are there");
    // Its clock is set: it holds again.
    seen(&mut marks, "dead", now + 39);
    tick(&mut marks, now + 41);
    seen(&mut marks, "live", now + 60);
    assert_eq!(seen(&mut marks, "slow", now + 60), Some(now + 39));
}

#[test]
fn sources_that_come_back_raise_it_together() {
    let mut marks = Watermark::new(1, 21, 100, 0);
    marks.declare(0, "c", Some(114), false);
    marks.declare(0, "a", Some(93), false);
    marks.resume(Some(70));
    assert_eq!(marks.current(), Some(72));
    assert_eq!(seen(&mut marks, "a", 100), Some(79));
}

#[test]
fn f11_a_watermark_that_a_wrong_clock_made_is_given_up() {
    let mut marks = Watermark::new(1, 0, 10, 0);
    let (wrong, right) = (1_000_000, 500);
    tick(&mut marks, wrong);
    seen(&mut marks, "a", 480);
    seen(&mut marks, "b", wrong);
    tick(&mut marks, wrong + 10);
    assert_eq!(marks.current(), Some(wrong + 10), "both silent");
    tick(&mut marks, right);
    marks.rebase(right);
    assert_eq!(marks.current(), None);
    assert_eq!(seen(&mut marks, "a", 490), Some(490), "b is idle");
    assert_eq!(seen(&mut marks, "b", 495), Some(490));
}

/// With a look at all others for each, 100,000 devices took minutes to join.
#[test]
fn many_sources_join_without_a_look_at_each_other() {
    let mut marks = Watermark::new(1, 0, 1_000, 0);
    for device in 0..5_i64 {
        seen(&mut marks, &device.to_string(), 100 - device);
        assert_eq!((marks.low, marks.holders, marks.unmarked), (Some(100 - device), 1, 0));
        assert!(!marks.stale, "nothing is left to look for");
    }
    assert_eq!(marks.current(), Some(100), "never back");
    marks.source(0, "no mark yet");
    assert_eq!((marks.low, marks.unmarked), (Some(96), 1));
}

#[test]
fn many_idle_sources_are_forgotten_and_hold_nothing() {
    let mut marks = Watermark::new(1, 0, 10, 0);
    marks.declare(0, "kept", None, true);
    for device in 0..SOURCES_MAX {
        seen(&mut marks, &device.to_string(), 1);
    }
    assert_eq!(marks.sources().len(), SOURCES_MAX + 1);
    tick(&mut marks, 20);
    assert_eq!(marks.sources().len(), 1);
    assert_eq!(seen(&mut marks, "kept", 30), Some(30));
    assert_eq!(seen(&mut marks, "17", 31), Some(30));
}
