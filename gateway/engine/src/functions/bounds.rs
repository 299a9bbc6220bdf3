//! `window_start()` and `window_end()`: the bounds of the window that is being computed.
//!
//! Promise: the value of this execution, never one that was folded into a plan: the functions are
//! volatile and read a cell that belongs to one query. One execution of a query runs at a time.
//! Functions over time find there where values hold from and to.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

use super::span::Edges;
use crate::window::{Bounds, Window};

/// Where an execution says which window it computes.
#[derive(Debug, Default)]
pub(crate) struct BoundsCell {
    start: AtomicI64,
    end: AtomicI64,
    window: OnceLock<Window>,
}

impl BoundsCell {
    /// Says by which definition windows are made, once.
    pub(crate) fn over(&self, window: &Window) {
        self.window.get_or_init(|| window.clone());
    }

    pub(crate) fn set(&self, bounds: Bounds) {
        self.start.store(bounds.start, Ordering::Release);
        self.end.store(bounds.end, Ordering::Release);
    }

    fn bounds(&self) -> Bounds {
        let load = |bound: &AtomicI64| bound.load(Ordering::Acquire);
        Bounds { start: load(&self.start), end: load(&self.end) }
    }

    /// Between which bounds values hold that were read before the first row or are followed by
    /// none; `None` where the window is no more than its rows.
    pub(super) fn edges(&self) -> Option<Edges> {
        let Bounds { start, end } = self.bounds();
        self.next_start().map(|_| Edges { start, end })
    }

    /// Where the next window starts.
    pub(super) fn next_start(&self) -> Option<i64> {
        self.window.get().and_then(|window| window.next_start(self.bounds()))
    }
}

pub(super) fn udf(cell: &Arc<BoundsCell>, start: bool) -> ScalarUDF {
    ScalarUDF::new_from_impl(Bound {
        cell: Arc::clone(cell),
        start,
        signature: Signature::nullary(Volatility::Volatile),
    })
}

#[derive(Debug)]
struct Bound {
    cell: Arc<BoundsCell>,
    start: bool,
    signature: Signature,
}

impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell) && self.start == other.start
    }
}

impl Eq for Bound {}

impl Hash for Bound {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.cell).hash(state);
        self.start.hash(state);
    }
}

impl ScalarUDFImpl for Bound {
    fn name(&self) -> &str {
        if self.start { "window_start" } else { "window_end" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bounds = self.cell.bounds();
        let micros = if self.start { bounds.start } else { bounds.end };
        Ok(ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(
            Some(micros),
            Some("UTC".into()),
        )))
    }
}
