//! Status as Prometheus metrics.
//!
//! Promise: each number of [`Status`] under a stable name, with base units (seconds, bytes) and a
//! plural noun in it, as <https://prometheus.io/docs/practices/naming/> asks.
//! Does not know: any counter itself, nor how the text is written (`exposition`).

use std::collections::BTreeMap;

use crate::clock;
use crate::console::{Readiness, Status};
use crate::exposition::{Float, Page};

/// Renders all metrics of the gateway.
pub fn render(status: &Status, readiness: &Readiness) -> String {
    let mut page = Page::default();
    gateway(&mut page, status, readiness);
    clock::render(&mut page, &status.clock_wait);
    links(&mut page, status);
    devices(&mut page, status);
    lookups(&mut page, status);
    streams(&mut page, status);
    sinks(&mut page, status);
    store(&mut page, status);
    ledger(&mut page, status);
    page.into_text()
}

fn gateway(page: &mut Page, status: &Status, readiness: &Readiness) {
    let gateway = &status.gateway;
    page.gauge("tidegate_info", "The gateway and its program version; always 1.", |f| {
        f.put(&[("gateway", &gateway.name), ("version", &gateway.version)], 1);
    });
    page.gauge("tidegate_epoch", "Epoch of the store, part of each record id.", |f| {
        f.put(&[], gateway.epoch);
    });
    page.gauge("tidegate_uptime_seconds", "Time since the process started.", |f| {
        f.put(&[], Float(gateway.uptime_s));
    });
    page.gauge("tidegate_ready", "1 while the streams do their work, else 0.", |f| {
        f.put(&[], u8::from(readiness.is_ready()));
    });
    page.gauge("tidegate_alarms", "What a person should look at; status tells what.", |f| {
        f.put(&[], status.alarms.len());
    });
    page.gauge(
        "tidegate_config_problems",
        "Problems of the configuration: warnings of the running one, or all of one refused since.",
        |f| {
            f.put(&[], status.config_problems.len());
        },
    );
}

fn links(page: &mut Page, status: &Status) {
    let links = &status.links;
    page.gauge("tidegate_link_state", "1 for the state that the link is in, else 0.", |f| {
        for l in links {
            f.put_state("link", &l.name, l.state);
        }
    });
    page.counter("tidegate_link_restarts_total", "Times the link's part was restarted.", |f| {
        for l in links {
            f.put(&[("link", &l.name)], l.restarts);
        }
    });
    let counted = || links.iter().map(|l| (&l.name, &l.counters));
    driver_counters(page, "link", counted);
}

fn devices(page: &mut Page, status: &Status) {
    let devices = &status.devices;
    page.gauge("tidegate_device_state", "1 for the state that the device is in, else 0.", |f| {
        for d in devices {
            f.put_state("device", &d.name, d.state);
        }
    });
    page.counter("tidegate_device_rows_total", "Rows read, by their quality.", |f| {
        for d in devices {
            let qualities =
                [("good", d.rows.good), ("uncertain", d.rows.uncertain), ("bad", d.rows.bad)];
            for (quality, rows) in qualities {
                let labels = [("device", &*d.name), ("table", &d.table), ("quality", quality)];
                f.put(&labels, rows);
            }
        }
    });
    page.gauge("tidegate_device_last_row_age_seconds", "Time since the last row.", |f| {
        for d in devices {
            f.put_known(&[("device", &d.name)], d.last_row_age_s.map(Float));
        }
    });
    page.gauge(
        "tidegate_device_learnt_holes",
        "Address ranges that the device does not have, learnt from its exceptions.",
        |f| {
            for d in devices.iter().filter(|d| d.driver == "modbus") {
                f.put(&[("device", &d.name)], d.learnt_holes.len());
            }
        },
    );
    page.counter("tidegate_device_restarts_total", "Times the device's part was restarted.", |f| {
        for d in devices {
            f.put(&[("device", &d.name)], d.restarts);
        }
    });
    let counted = || devices.iter().map(|d| (&d.name, &d.counters));
    driver_counters(page, "device", counted);
}

fn lookups(page: &mut Page, status: &Status) {
    let lookups = &status.lookups;
    page.gauge("tidegate_lookup_state", "1 for the state that the lookup is in, else 0.", |f| {
        for l in lookups {
            f.put_state("lookup", &l.name, l.state);
        }
    });
    page.gauge("tidegate_lookup_rows", "Rows that SQL sees.", |f| {
        for l in lookups {
            f.put(&[("lookup", &l.name)], l.rows);
        }
    });
    page.gauge("tidegate_lookup_age_seconds", "Time since these rows were loaded.", |f| {
        for l in lookups {
            f.put_known(&[("lookup", &l.name)], l.age_s.map(Float));
        }
    });
    page.counter("tidegate_lookup_loads_total", "Loads, by how they ended.", |f| {
        for l in lookups {
            for (outcome, loads) in [("loaded", l.loads), ("failed", l.failures)] {
                f.put(&[("lookup", &l.name), ("outcome", outcome)], loads);
            }
        }
    });
}

fn streams(page: &mut Page, status: &Status) {
    let streams = &status.streams;
    page.gauge("tidegate_stream_state", "1 for the state that the stream is in, else 0.", |f| {
        for s in streams {
            f.put_state("stream", &s.name, s.state);
        }
    });
    for (name, help, value) in STREAM_COUNTERS {
        page.counter(name, help, |f| {
            for s in streams {
                f.put(&[("stream", &s.name)], value(s));
            }
        });
    }
    for (name, help, value) in STREAM_GAUGES {
        page.gauge(name, help, |f| {
            for s in streams {
                f.put(&[("stream", &s.name)], value(s));
            }
        });
    }
    page.gauge(
        "tidegate_stream_watermark_lag_seconds",
        "How far the watermark is behind the gateway's clock.",
        |f| {
            for s in streams {
                f.put_known(&[("stream", &s.name)], s.watermark_lag_s.map(Float));
            }
        },
    );
    page.gauge(
        "tidegate_stream_queue_fill_ratio",
        "Waiting batches through the bound limits.stream_queue.",
        |f| {
            for s in streams {
                let ratio = ratio(s.queue_len, s.queue_capacity);
                f.put_known(&[("stream", &s.name)], ratio);
            }
        },
    );
}

/// Name, HELP and value of a family that has one sample for each part.
type Plain<T> = (&'static str, &'static str, fn(&T) -> u64);

const STREAM_COUNTERS: [Plain<crate::StreamStatus>; 14] = [
    ("tidegate_stream_accepted_rows_total", "Rows that reached the stream.", |s| s.accepted),
    ("tidegate_stream_windowed_rows_total", "Rows in results of closed windows.", |s| s.windowed),
    ("tidegate_stream_late_rows_total", "Rows that came after their window closed.", |s| s.late),
    ("tidegate_stream_future_rows_total", "Rows whose time was too far ahead of the clock.", |s| {
        s.future
    }),
    (
        "tidegate_stream_restamped_rows_total",
        "Rows from too far ahead that were given the time of their arrival.",
        |s| s.restamped,
    ),
    ("tidegate_stream_filtered_rows_total", "Rows that a stateless query left out.", |s| {
        s.filtered
    }),
    (
        "tidegate_stream_failed_rows_total",
        "Rows of windows or batches that the query failed on.",
        |s| s.failed,
    ),
    ("tidegate_stream_dropped_rows_total", "Rows of open windows that were given up.", |s| {
        s.dropped
    }),
    (
        "tidegate_stream_missed_rows_total",
        "Rows of its tables that were gone before the stream read them.",
        |s| s.missed,
    ),
    ("tidegate_stream_results_total", "Output rows.", |s| s.results),
    ("tidegate_stream_unrouted_results_total", "Output rows that no route took.", |s| s.unrouted),
    ("tidegate_stream_errors_total", "Windows or batches that the query failed on.", |s| s.errors),
    ("tidegate_stream_plans_total", "Times the stream's SQL was planned.", |s| s.plans),
    ("tidegate_stream_restarts_total", "Times the stream's part was restarted.", |s| s.restarts),
];

const STREAM_GAUGES: [Plain<crate::StreamStatus>; 3] = [
    ("tidegate_stream_open_rows", "Rows in windows that are still open.", |s| s.open_rows),
    ("tidegate_stream_open_windows", "Windows that are still open.", |s| s.open_windows),
    ("tidegate_stream_queue_batches", "Batches that wait for the stream.", |s| s.queue_len),
];

fn sinks(page: &mut Page, status: &Status) {
    let sinks = &status.sinks;
    page.gauge("tidegate_sink_state", "1 for the state that the sink is in, else 0.", |f| {
        for s in sinks {
            f.put_state("sink", &s.name, s.state);
        }
    });
    for (name, help, value) in SINK_COUNTERS {
        page.counter(name, help, |f| {
            for s in sinks {
                f.put(&[("sink", &s.name)], value(s));
            }
        });
    }
    page.counter("tidegate_sink_dropped_records_total", "Records given up, by reason.", |f| {
        for s in sinks {
            f.put_each("sink", &s.name, "reason", &s.dropped);
        }
    });
    for (name, help, value) in SINK_GAUGES {
        page.gauge(name, help, |f| {
            for s in sinks {
                f.put(&[("sink", &s.name)], value(s));
            }
        });
    }
    page.gauge(
        "tidegate_sink_oldest_record_age_seconds",
        "Age of the oldest record that waits for the sink.",
        |f| {
            for s in sinks {
                f.put_known(&[("sink", &s.name)], s.oldest_age_s.map(Float));
            }
        },
    );
    page.gauge(
        "tidegate_sink_buffer_fill_ratio",
        "Bytes that wait for the sink through its bound store.max_bytes.",
        |f| {
            for s in sinks {
                f.put_known(&[("sink", &s.name)], ratio(s.buffered_bytes, s.buffered_bytes_max));
            }
        },
    );
    let counted = || sinks.iter().map(|s| (&s.name, &s.counters));
    driver_counters(page, "sink", counted);
}

const SINK_COUNTERS: [Plain<crate::SinkStatus>; 5] = [
    ("tidegate_sink_delivered_records_total", "Records that the far side took.", |s| s.delivered),
    ("tidegate_sink_replayed_records_total", "Of these, records that had waited.", |s| s.replayed),
    ("tidegate_sink_rejected_records_total", "Records that the far side refused.", |s| s.rejected),
    (
        "tidegate_sink_dropped_dead_letters_total",
        "Refused records that are not kept any more, because newer ones came or the store was full.",
        |s| s.letters_dropped,
    ),
    ("tidegate_sink_restarts_total", "Times the sink's part was restarted.", |s| s.restarts),
];

const SINK_GAUGES: [Plain<crate::SinkStatus>; 7] = [
    ("tidegate_sink_paused", "1 while nothing is delivered on request, else 0.", |s| {
        u64::from(s.paused)
    }),
    ("tidegate_sink_lanes", "2 while live records pass a backlog, else 1.", |s| {
        1 + u64::from(s.lanes.is_some())
    }),
    ("tidegate_sink_dead_letters", "Refused records that are kept.", |s| s.letters),
    ("tidegate_sink_dead_letter_bytes", "Their bytes.", |s| s.letter_bytes),
    ("tidegate_sink_gap_notices", "Notices of missing records that wait.", |s| s.gaps),
    ("tidegate_sink_buffered_records", "Records that wait for the sink.", |s| s.buffered_records),
    ("tidegate_sink_buffered_bytes", "Bytes that wait for the sink.", |s| s.buffered_bytes),
];

fn store(page: &mut Page, status: &Status) {
    let store = &status.store;
    for (name, help, value) in STORE_COUNTERS {
        page.counter(name, help, |f| f.put(&[], value(store)));
    }
    for (name, help, value) in STORE_GAUGES {
        page.gauge(name, help, |f| f.put(&[], value(store)));
    }
    page.gauge(
        "tidegate_store_write_amplification_ratio",
        "Bytes written for each byte committed.",
        |f| f.put_known(&[], store.write_amplification.map(Float)),
    );
    page.gauge(
        "tidegate_store_daily_writes_bytes",
        "Bytes that may be written in a day (store.daily_writes).",
        |f| f.put_known(&[], store.daily_writes.map(|bytes| Float(bytes as f64))),
    );
    page.gauge(
        "tidegate_store_queue_fill_ratio",
        "Waiting commits through the bound limits.store_queue.",
        |f| f.put_known(&[], ratio(store.queue_len, store.queue_capacity)),
    );
}

const STORE_COUNTERS: [Plain<crate::StoreStatus>; 7] = [
    ("tidegate_store_commits_total", "Durable commits.", |s| s.commits),
    ("tidegate_store_committed_bytes_total", "Bytes of the values committed.", |s| {
        s.bytes_committed
    }),
    ("tidegate_store_written_bytes_total", "Bytes written for them.", |s| s.bytes_written),
    ("tidegate_store_dropped_log_rows_total", "Logged rows dropped by the store's bound.", |s| {
        s.log_rows_dropped
    }),
    ("tidegate_store_reopened_total", "Times that the files were opened again.", |s| s.reopened),
    ("tidegate_store_corrupt_rows_total", "Rows in records with a wrong checksum.", |s| {
        s.corrupt_rows
    }),
    ("tidegate_store_corrupt_records_total", "Records with a wrong checksum.", |s| {
        s.corrupt_records
    }),
];

const STORE_GAUGES: [Plain<crate::StoreStatus>; 7] = [
    ("tidegate_store_stalled", "1 while nothing can be made durable, else 0.", |s| {
        u64::from(s.stalled.is_some())
    }),
    ("tidegate_store_unread", "1 while something that is stored cannot be read, else 0.", |s| {
        u64::from(s.unread.is_some())
    }),
    ("tidegate_store_written_today_bytes", "Bytes written on the present day (UTC).", |s| {
        s.written_today
    }),
    ("tidegate_store_held_bytes", "Bytes of rows, records and dead letters.", |s| s.held_bytes),
    ("tidegate_store_file_bytes", "Size of the store's files.", |s| s.file_bytes),
    (
        "tidegate_store_file_bytes_max",
        "Bound of rows, waiting records and dead letters (`store.max_bytes`); the files take somewhat more.",
        |s| s.file_bytes_max,
    ),
    ("tidegate_store_queue_commits", "Commits that wait.", |s| s.queue_len),
];

fn ledger(page: &mut Page, status: &Status) {
    let ledger = &status.ledger;
    page.counter("tidegate_source_read_rows_total", "Rows that the driver read.", |f| {
        for s in &ledger.sources {
            f.put(&[("device", &s.device)], s.read);
        }
    });
    page.counter("tidegate_source_accepted_rows_total", "Rows that the store took.", |f| {
        for s in &ledger.sources {
            f.put(&[("device", &s.device)], s.accepted);
        }
    });
    page.counter("tidegate_source_refused_rows_total", "Rows not taken, by reason.", |f| {
        for s in &ledger.sources {
            f.put_each("device", &s.device, "reason", &s.refused);
        }
    });
    page.counter("tidegate_sink_results_total", "Records put into the sink's outbox.", |f| {
        for s in &ledger.sinks {
            f.put(&[("sink", &s.sink)], s.results);
        }
    });
    page.gauge(
        "tidegate_ledger_unaccounted",
        "Rows or records that no part of a hop accounts for; 0 unless a counter is wrong.",
        |f| {
            for s in &ledger.sources {
                f.put(&[("hop", "source"), ("name", &s.device)], s.unaccounted());
            }
            for s in &ledger.streams {
                f.put(&[("hop", "stream"), ("name", &s.stream)], s.unaccounted());
            }
            for s in &ledger.sinks {
                f.put(&[("hop", "sink"), ("name", &s.sink)], s.unaccounted());
            }
        },
    );
}

/// What drivers counted. Bytes are a family of their own: one family has one unit.
fn driver_counters<'a, I>(page: &mut Page, kind: &'static str, counted: impl Fn() -> I)
where
    I: Iterator<Item = (&'a String, &'a BTreeMap<String, u64>)>,
{
    let events = format!("tidegate_{kind}_events_total");
    page.counter(&events, "What the driver counted, by event.", |f| {
        for (name, counters) in counted() {
            for (event, n) in counters.iter().filter(|(c, _)| !c.starts_with(BYTES)) {
                f.put(&[(kind, name), ("event", event)], n);
            }
        }
    });
    let bytes = format!("tidegate_{kind}_bytes_total");
    page.counter(&bytes, "Bytes received and sent, by direction.", |f| {
        for (name, counters) in counted() {
            for (counter, n) in counters {
                if let Some(direction) = counter.strip_prefix(BYTES) {
                    f.put(&[(kind, name), ("direction", direction)], n);
                }
            }
        }
    });
}

/// How drivers' counters of bytes begin: `bytes_in`, `bytes_out`.
const BYTES: &str = "bytes_";

/// How full something bounded is; nothing where the bound is not known.
fn ratio(len: u64, capacity: u64) -> Option<Float> {
    (capacity > 0).then(|| Float(len as f64 / capacity as f64))
}
