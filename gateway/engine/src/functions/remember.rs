//! The operator that runs functions with memory: exactly once for each row, in the rows' order.
//!
//! Promise: it sees every row of its input, whatever stands above it. A volatile function in an
//! expression would not do: `AND` and `CASE` leave out rows, and how many depends on how they were
//! cut into batches. Optimizers push nothing through it. The result is a column behind the input's.
//! Its input is one partition, so that the rows of a union come one part after the other.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringArray};
use datafusion::arrow::compute::{cast, nullif};
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchemaRef, Result, exec_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore,
};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties,
    PlanProperties,
};
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use futures::StreamExt;
use futures::future::BoxFuture;

use super::bounds::BoundsCell;
use super::finish::Finish;
use super::memory::{Place, Slot};
use super::step;

/// A function with memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Function {
    Changed,
    Deadband { percent: bool },
    Hysteresis,
    Finish(Finish),
}

/// One call of one function.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) function: Function,
    /// The column of the result.
    pub(super) column: Arc<Field>,
    pub(super) slot: Arc<Slot>,
    pub(super) cell: Arc<BoundsCell>,
}

impl Call {
    fn run(&self, arguments: &[ArrayRef], keys: &[ArrayRef]) -> Result<ArrayRef> {
        let keys = Rows::of(keys)?;
        let mut memory = self.slot.keys();
        if let Function::Finish(finish) = self.function {
            let [spans] = arguments else {
                return exec_err!("`{}` lacks its spans", self.column.name());
            };
            return finish.run(spans, &mut memory, |row, key| keys.write(row, key), &self.cell);
        }
        let rows = arguments.first().map_or(0, Array::len);
        let mut key = Vec::new();
        let mut each = |step: &mut dyn FnMut(usize, &mut Place) -> bool| -> BooleanArray {
            let answer = |row| {
                key.clear();
                keys.write(row, &mut key);
                Some(memory.hold(&key, |place| step(row, place)))
            };
            (0..rows).map(answer).collect()
        };
        let answers = match self.function {
            Function::Changed => {
                let texts = texts(&arguments[0])?;
                each(&mut |row, place| {
                    step::changed(place, (!texts.is_null(row)).then(|| texts.value(row)))
                })
            }
            Function::Deadband { percent } => {
                let [value, band] = [0, 1].map(|at| numbers(&arguments[at]));
                each(&mut |row, place| step::deadband(place, value(row), band(row), percent))
            }
            _ => {
                let [value, low, high] = [0, 1, 2].map(|at| numbers(&arguments[at]));
                each(&mut |row, place| step::hysteresis(place, value(row), low(row), high(row)))
            }
        };
        Ok(Arc::new(answers))
    }
}

/// A column's values as text, so that they can be kept; NaN is null, and -0 is 0.
fn texts(values: &ArrayRef) -> Result<StringArray> {
    let plain = if values.data_type().is_floating() {
        let floats = cast(values, &DataType::Float64)?;
        let floats = floats.as_primitive::<Float64Type>();
        let nan: BooleanArray = floats.values().iter().map(|value| Some(value.is_nan())).collect();
        let known = nullif(&floats.unary::<_, Float64Type>(|value| value + 0.0), &nan)?;
        cast(&known, &DataType::Utf8)?
    } else {
        cast(values, &DataType::Utf8)?
    };
    Ok(plain.as_string::<i32>().clone())
}

fn numbers(values: &ArrayRef) -> impl Fn(usize) -> Option<f64> + use<> {
    let values = values.as_primitive_opt::<Float64Type>().cloned();
    move |row| values.as_ref().filter(|values| !values.is_null(row)).map(|v| v.value(row))
}

/// The columns that tell keys apart.
struct Rows(Vec<StringArray>);

impl Rows {
    fn of(columns: &[ArrayRef]) -> Result<Self> {
        let text =
            |column: &ArrayRef| Ok(cast(column, &DataType::Utf8)?.as_string::<i32>().clone());
        Ok(Self(columns.iter().map(text).collect::<Result<_>>()?))
    }

    /// Appends a row's key: for each column 0, or 1 and the text's length and bytes.
    fn write(&self, row: usize, key: &mut Vec<u8>) {
        for column in &self.0 {
            if column.is_null(row) {
                key.push(0);
                continue;
            }
            let text = column.value(row);
            key.push(1);
            key.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
            key.extend(text.as_bytes());
        }
    }
}

/// The operator in a logical plan; without a call it only brings partitions together.
#[derive(Debug, Clone)]
pub(super) struct Remember {
    input: LogicalPlan,
    call: Option<Call>,
    arguments: Vec<Expr>,
    keys: Vec<Expr>,
    schema: DFSchemaRef,
}

impl Remember {
    pub(super) fn new(
        input: LogicalPlan,
        call: Option<Call>,
        arguments: Vec<Expr>,
        keys: Vec<Expr>,
    ) -> Result<Self> {
        let mut schema = input.schema().as_ref().clone();
        if let Some(call) = &call {
            let column = datafusion::common::DFSchema::from_unqualified_fields(
                vec![Arc::clone(&call.column)].into(),
                std::collections::HashMap::new(),
            )?;
            schema = schema.join(&column)?;
        }
        Ok(Self { input, call, arguments, keys, schema: Arc::new(schema) })
    }

    fn name_of(&self) -> &str {
        self.call.as_ref().map_or("", |call| call.column.name())
    }
}

impl PartialEq for Remember {
    fn eq(&self, other: &Self) -> bool {
        self.name_of() == other.name_of()
            && self.arguments == other.arguments
            && self.keys == other.keys
            && self.input == other.input
    }
}

impl Eq for Remember {}

impl Hash for Remember {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name_of().hash(state);
        self.arguments.hash(state);
        self.input.hash(state);
    }
}

impl PartialOrd for Remember {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for Remember {
    fn name(&self) -> &'static str {
        "Remember"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.arguments.iter().chain(&self.keys).cloned().collect()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let list =
            |exprs: &[Expr]| exprs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        write!(f, "Remember: {}", self.name_of())?;
        if self.call.is_some() {
            write!(f, " of [{}] by [{}]", list(&self.arguments), list(&self.keys))?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let Ok([input]) = <[LogicalPlan; 1]>::try_from(inputs) else {
            return internal_err!("Remember has one input");
        };
        let mut arguments = exprs;
        let keys = arguments.split_off(self.arguments.len());
        Self::new(input, self.call.clone(), arguments, keys)
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        // All: which rows are seen changes what is remembered.
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let inputs = self.input.schema().fields().len();
        // The columns of the arguments are added by whoever asks.
        Some(vec![output_columns.iter().copied().filter(|column| *column < inputs).collect()])
    }
}

/// Makes the operator's physical form.
#[derive(Debug)]
pub(crate) struct RememberPlanner;

impl ExtensionPlanner for RememberPlanner {
    // Written out, as `async_trait` would write it.
    fn plan_extension<'me, 'a, 'b, 'c, 'd, 'e, 'f, 'g, 'all>(
        &'me self,
        planner: &'a dyn PhysicalPlanner,
        node: &'b dyn UserDefinedLogicalNode,
        _: &'c [&'d LogicalPlan],
        physical_inputs: &'e [Arc<dyn ExecutionPlan>],
        session: &'f dyn Session,
        planning: &'g PhysicalPlanningContext,
    ) -> BoxFuture<'all, Result<Option<Arc<dyn ExecutionPlan>>>>
    where
        'me: 'all,
        'a: 'all,
        'b: 'all,
        'c: 'all,
        'd: 'all,
        'e: 'all,
        'f: 'all,
        'g: 'all,
        Self: 'all,
    {
        let physical = || {
            let (Some(node), [input]) = (node.as_any().downcast_ref::<Remember>(), physical_inputs)
            else {
                return Ok(None);
            };
            let all = |exprs: &[Expr]| -> Result<Vec<Arc<dyn PhysicalExpr>>> {
                let schema = node.input.schema();
                let physical = |expr| planner.create_physical_expr(expr, schema, session, planning);
                exprs.iter().map(physical).collect()
            };
            let (arguments, keys) = (all(&node.arguments)?, all(&node.keys)?);
            let exec = RememberExec::new(Arc::clone(input), node.call.clone(), arguments, keys);
            Ok(Some(Arc::new(exec) as Arc<dyn ExecutionPlan>))
        };
        let physical = physical();
        Box::pin(async move { physical })
    }
}

/// The operator in a physical plan.
#[derive(Debug)]
struct RememberExec {
    input: Arc<dyn ExecutionPlan>,
    call: Option<Call>,
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl RememberExec {
    fn new(
        input: Arc<dyn ExecutionPlan>,
        call: Option<Call>,
        arguments: Vec<Arc<dyn PhysicalExpr>>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Self {
        let mut fields = input.schema().fields().to_vec();
        fields.extend(call.iter().map(|call| Arc::clone(&call.column)));
        let metadata = input.schema().metadata().clone();
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            input.output_partitioning().clone(),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self { input, call, arguments, keys, schema, properties: Arc::new(properties) }
    }
}

impl DisplayAs for RememberExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let name = self.call.as_ref().map_or("", |call| call.column.name());
        write!(f, "RememberExec: {name}")
    }
}

impl ExecutionPlan for RememberExec {
    fn name(&self) -> &'static str {
        "RememberExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for expr in self.arguments.iter().chain(&self.keys) {
            if f(expr)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(input) = children.pop() else {
            return internal_err!("RememberExec has one child");
        };
        Ok(Arc::new(Self::new(input, self.call.clone(), self.arguments.clone(), self.keys.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let Some(call) = self.call.clone() else {
            return Ok(input);
        };
        let (arguments, keys) = (self.arguments.clone(), self.keys.clone());
        let schema = Arc::clone(&self.schema);
        let rows = input.map(move |batch| {
            let batch = batch?;
            let evaluate = |exprs: &[Arc<dyn PhysicalExpr>]| -> Result<Vec<ArrayRef>> {
                let array = |expr: &Arc<dyn PhysicalExpr>| {
                    expr.evaluate(&batch)?.into_array(batch.num_rows())
                };
                exprs.iter().map(array).collect()
            };
            let result = call.run(&evaluate(&arguments)?, &evaluate(&keys)?)?;
            let columns = batch.columns().iter().cloned().chain([result]).collect();
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }
}
