//! The promises of Tidegate, tried from outside: the real binary, real sockets and files, and
//! programs that are not ours (mosquitto, pymodbus). One module for each promise.
//!
//! Nothing here uses our own crates, and no expected value comes from our own encoder. The binary
//! is `TIDEGATE_BIN`, or `tidegate` beside this test's folder (`cargo test --workspace` builds it).

#![expect(
    clippy::disallowed_methods,
    reason = "black-box tests live on the real clock; a bounded wait looks again after a pause"
)]
#![expect(clippy::expect_used, reason = "a test fails by a panic that says why")]

mod harness;

mod a_backlog_keeps_to_its_rate;
mod a_change_touches_only_what_differs;
mod a_configuration_that_fails_is_undone;
mod a_damaged_store_is_set_aside;
mod a_full_disk_stops_nobody;
mod a_hung_part_is_restarted;
mod a_paused_sink_waits_over_restarts;
mod a_program_beside_the_gateway;
mod a_read_only_disk_is_an_alarm;
mod a_row_goes_where_it_is_routed;
mod a_silent_unit_leaves_the_others_their_rate;
mod a_store_that_cannot_be_opened_is_no_crash_loop;
mod an_acknowledgement_is_lost;
mod bad_input_is_one_clear_message;
mod broker_outage_keeps_every_second;
mod cold_start_without_broker;
mod cycles_begin_on_time;
mod demo_loses_nothing;
mod dependencies_stay_as_decided;
mod examples_check_and_their_tests_pass;
mod failing_syncs_lie_to_nobody;
mod file_sink_lines_are_whole;
mod flash_wears_slowly;
mod folded_windows_survive_kill_9;
mod full_outboxes_do_what_was_asked;
mod history_is_kept_as_long_as_asked;
mod keeps_polling_while_uplink_is_down;
mod little_comes_again_after_a_kill;
mod little_room_is_enough;
mod log_levels_go_back_by_themselves;
mod lookups_from_sqlite;
mod lookups_keep_their_last_good_copy;
mod mqtt_input_survives_what_comes;
mod no_duplicates_without_faults;
mod nothing_is_lost_in_the_long_run;
mod qos1_input_is_not_throttled;
mod reads_a_foreign_modbus_server;
mod refused_records_can_be_sent_again;
mod results_are_durable_at_once;
mod rows_before_the_clock_is_set_get_their_time;
mod rows_that_rot_are_counted;
mod sessions_survive_kill_9;
mod simulator_serves_a_foreign_client;
mod status_tells_the_truth;
mod stops_within_grace;
mod streams_are_stopped_and_looked_at;
mod streams_read_streams;
mod survives_kill_9;
mod the_clock_is_set_and_nothing_is_lost;
mod the_ledger_survives_kill_9;
mod the_service_executes_nothing;
mod the_store_can_be_looked_at;
mod the_store_survives_each_system_call;
mod the_store_survives_power_cuts;
mod windows_follow_event_time;
