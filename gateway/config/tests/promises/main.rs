//! What the configuration promises, black box: text in, documents or problems out.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking; clippy knows only the functions marked #[test]"
)]

mod a_panic_is_a_problem;
mod bad_form_is_refused_with_its_place;
mod bad_meaning_is_refused_with_its_place;
mod every_driver_has_an_example;
mod explains_what_a_document_amounts_to;
mod folders_and_references;
mod knows_no_engine_and_no_network;
mod one_schema;
mod routes_and_calendars;
mod slips_in_tests_are_found;
mod stand_in;
