//! What a driver promises to deliver: named, typed columns, known from the configuration alone.
//!
//! The Arrow type of a column never depends on what a device answers, so that SQL can be planned
//! with no device present.

pub use arrow_schema::DataType;

/// One column that a driver fills: a point of a device, or a metadata column of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The column's name in SQL.
    pub name: String,
    /// The column's Arrow type; see [`crate::south`] for the types that drivers use.
    pub data_type: DataType,
    /// The unit as the user wrote it, for display only.
    pub unit: Option<String>,
    /// True for a column that describes the row (`topic`, `qos`): it has no quality of its own and
    /// does not take part in the row's quality.
    pub metadata: bool,
}

impl Point {
    /// Describes a measured value without a unit.
    pub fn new(name: impl Into<String>, data_type: DataType) -> Self {
        Self { name: name.into(), data_type, unit: None, metadata: false }
    }

    /// Describes a column that tells about the row, not about the plant.
    pub fn metadata(name: impl Into<String>, data_type: DataType) -> Self {
        Self { metadata: true, ..Self::new(name, data_type) }
    }
}
