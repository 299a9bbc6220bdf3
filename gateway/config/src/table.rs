//! The SQL tables that devices make, with all their columns.
//!
//! Columns follow from the configuration alone, so SQL is planned with no device present. The
//! order is binding: `time`, `device`, `quality`, `seq`, for feeds `received_at`, the driver's
//! columns, then with `point_quality` two columns for each point.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::{Device, Document, Span};

/// Columns that every table has or may have; no point may be called so.
pub const RESERVED_COLUMNS: [&str; 5] = ["time", "device", "quality", "seq", "received_at"];

/// One SQL table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The table's name in SQL; one with a hyphen needs double quotes there.
    pub name: String,
    /// All columns, in order.
    pub columns: SchemaRef,
    /// Indices into [`Document::devices`] of the devices whose rows it holds, at least one.
    pub devices: Vec<usize>,
    /// For each of them, which of its poll groups.
    pub groups: Vec<usize>,
    /// True where rows are sent to us, so that there is a column `received_at`.
    pub feed: bool,
    /// How long rows are kept after all streams have passed them.
    pub history: Option<Span>,
}

impl Document {
    /// What is read by a part of its own: each device, or each of its poll groups by number.
    pub fn device_parts(&self) -> impl Iterator<Item = (&Device, usize)> {
        let groups = |device: &Device| device.driver.groups().len();
        self.devices.iter().flat_map(move |d| (0..groups(d)).map(move |group| (d, group)))
    }

    /// The SQL tables in the order of their first device. Where devices share a table, the first
    /// one's columns count; `check` refuses others.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            for group in 0..device.driver.groups().len() {
                let name = device.table_of(group);
                if let Some(table) = tables.iter_mut().find(|t| t.name == name) {
                    table.devices.push(index);
                    table.groups.push(group);
                    table.history = table.history.max(device.history);
                } else {
                    tables.push(Table {
                        name,
                        columns: device.schema_of(group),
                        devices: vec![index],
                        groups: vec![group],
                        feed: device.driver.is_feed(),
                        history: device.history,
                    });
                }
            }
        }
        tables
    }
}

impl Device {
    /// All columns of the table of one of the device's poll groups, in order.
    pub fn schema_of(&self, group: usize) -> SchemaRef {
        let utc = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let mut fields = vec![
            Field::new("time", utc(), false),
            Field::new("device", DataType::Utf8, false),
            Field::new("quality", DataType::Utf8, false),
            Field::new("seq", DataType::UInt64, false),
        ];
        if self.driver.is_feed() {
            fields.push(Field::new("received_at", utc(), false));
        }
        let points = self.driver.columns_of(group);
        fields.extend(points.iter().map(|p| Field::new(&p.name, p.data_type.clone(), true)));
        if self.point_quality {
            for point in points.iter().filter(|p| !p.metadata) {
                for suffix in ["quality", "reason"] {
                    fields.push(Field::new(
                        format!("{}_{suffix}", point.name),
                        DataType::Utf8,
                        true,
                    ));
                }
            }
        }
        Arc::new(Schema::new(fields))
    }
}
