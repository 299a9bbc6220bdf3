use arrow::array::{
    Array, Int16Array, Int64Array, StringArray, TimestampMicrosecondArray, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;

use super::super::{Sql, TableSchema};
use super::*;
use crate::window::Bounds;

/// A register of each kind, of which little arithmetic fits the kind.
fn registers() -> RecordBatch {
    let columns: [(&str, ArrayRef); 10] = [
        ("time", Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("UTC"))),
        ("device", Arc::new(StringArray::from(vec!["m"]))),
        ("a", Arc::new(UInt16Array::from(vec![40_000]))),
        ("b", Arc::new(UInt16Array::from(vec![40_001]))),
        ("i", Arc::new(Int16Array::from(vec![i16::MIN]))),
        ("u", Arc::new(UInt32Array::from(vec![4_000_000_000]))),
        ("w", Arc::new(UInt64Array::from(vec![7]))),
        ("huge", Arc::new(UInt64Array::from(vec![u64::MAX]))),
        ("most", Arc::new(Int64Array::from(vec![i64::MAX]))),
        ("none", Arc::new(Int64Array::from(vec![None]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
}

async fn compute(what: &str, windowed: bool) -> Result<String, String> {
    let rows = registers();
    let sql = Sql::new(1 << 20).unwrap();
    let text = format!("SELECT {what} AS x FROM m");
    let mut query = sql.plan(&text, &[table()], windowed).map_err(|e| e.message)?;
    let bounds = windowed.then_some(Bounds { start: 0, end: 10 });
    let result = query.execute(vec![vec![rows]], bounds).await.map_err(|e| e.message)?;
    let column = result[0].column(0);
    Ok(if column.is_null(0) {
        "null".to_owned()
    } else {
        array_value_to_string(column, 0).unwrap()
    })
}

#[tokio::test]
async fn small_registers_do_not_wrap() {
    for (what, result) in [
        ("a + b", "80001"),
        ("a - b", "-1"),
        ("a * b", "1600040000"),
        ("i * i", "1073741824"),
        ("i - a", "-72768"),
        ("u + u + a", "8000040000"),
        ("w - u", "-3999999993"),
        ("w - 8", "-1"),
        ("a * 10 + 1", "400001"),
        ("(a + b) * 0.5", "40000.5"),
        ("a / 7", "5714"),
        ("a % 7", "2"),
        ("huge", "18446744073709551615"),
        // -(-32,768) is no number of 16 bits.
        ("-i", "32768"),
        ("-(i + 1)", "32767"),
        ("- -most", "9223372036854775807"),
        ("-most - 1", "-9223372036854775808"),
        ("most + a - a - 1", "overflow"),
        ("most - a + a", "9223372036854775807"),
        ("-(-most - 1)", "overflow"),
        // 2^63 - 2, and one more than there is.
        ("(most - 1) / 2 * 2", "9223372036854775806"),
        ("((most - 1) / 2 + 1) * 2", "overflow"),
        ("most * most", "overflow"),
        ("-most - 2", "overflow"),
    ] {
        if result == "overflow" {
            let error = compute(what, false).await.unwrap_err();
            assert!(error.contains("does not fit 64 bits"), "{what}: {error}");
            continue;
        }
        assert_eq!(compute(what, false).await.as_deref(), Ok(result), "{what}");
    }
    assert_eq!(compute("sum(a + b)", true).await.as_deref(), Ok("80001"));
    assert_eq!(compute("sum(i * 2)", true).await.as_deref(), Ok("-65536"));
}

/// What does not fit is told, with the expression, the numbers and what would do; it is not made
/// another number.
#[tokio::test]
async fn errors_name_the_expression() {
    let advice = "does not fit 64 bits; compute with floats, as in CAST(x AS DOUBLE)";
    for (what, told) in [
        ("most + 1", "`m.most + 1`: 9223372036854775807 + 1"),
        ("(most + 0) * a", "`(m.most + 0) * m.a`: 9223372036854775807 * 40000"),
        ("most * -most", "`m.most * (-m.most)`: 9223372036854775807 * -9223372036854775807"),
        ("-(0 - most - 1)", "`-((0 - m.most) - 1)`: - -9223372036854775808"),
        ("huge - w", "`m.huge - m.w`: 18446744073709551615"),
        ("abs(a + most)", "`m.a + m.most`: 40000 + 9223372036854775807"),
        // A division is DataFusion's own, and says so much.
        ("(-most - 1) / -1", "Overflow happened on: -9223372036854775808 / -1"),
    ] {
        let error = compute(what, false).await.unwrap_err();
        let rest = error.split_once(told).map(|(_, rest)| rest.trim());
        let expected = if told.starts_with('`') { advice } else { "" };
        assert_eq!(rest, Some(expected), "{what}: {error}");
    }
    assert_eq!(compute("(-most - 1) % -1", false).await.as_deref(), Ok("0"));
    let long = format!("most{}", " + 0".repeat(60));
    let error = compute(&format!("{long} + 1"), false).await.unwrap_err();
    assert!(error.contains("…`: 9223372036854775807 + 1 does not"), "{error}");
}

/// Rows that are NULL, or that a filter leaves out, hold any bits, and none of them is computed.
#[tokio::test]
async fn null_fits_everywhere() {
    for what in ["most + none", "none * most", "-none", "none - none"] {
        assert_eq!(compute(what, false).await.as_deref(), Ok("null"), "{what}");
    }
    // Under the mask stands the largest number.
    let masked = Int64Array::new(vec![i64::MAX, 1].into(), Some(vec![false, true].into()));
    let two = Int64Array::from(vec![2, 2]);
    let sum = arrow::compute::kernels::numeric::add(&masked, &two).unwrap();
    assert_eq!(sum.as_primitive::<Int64Type>(), &Int64Array::from(vec![None, Some(3)]));
}

fn table() -> TableSchema {
    let (name, time_column) = ("m".to_owned(), "time".to_owned());
    TableSchema { name, schema: registers().schema(), time_column }
}

/// Wherever the SQL has arithmetic, none of whole numbers is left to operators.
#[test]
fn no_operator_is_left() {
    let sql = Sql::new(64 << 20).unwrap();
    for text in [
        "SELECT a AS s FROM m ORDER BY s + i, b * 2",
        "SELECT device, sum(a) AS s FROM m GROUP BY device HAVING sum(a) + 1 > -max(i)",
        "SELECT a + b AS s, count(*) - 1 AS c FROM m GROUP BY a + b ORDER BY count(*) * 2",
        "SELECT a FROM m WHERE a + 1 IN (b, i - 1) AND i * 2 BETWEEN -i AND i + 5",
        "SELECT x.a FROM m AS x JOIN m AS y ON x.a + 1 = y.b AND x.i * 2 < y.i",
        "SELECT (SELECT max(n.a + 1) FROM m AS n WHERE n.i = m.i + 1) - 1 AS x FROM m",
        "SELECT a FROM m WHERE EXISTS (SELECT 1 FROM m AS n WHERE n.i * 2 = m.i - 1)",
        "SELECT sum(a * 2) FILTER (WHERE i + 1 > 0) OVER (PARTITION BY a - b ORDER BY i * 3) AS s \
         FROM m",
        "SELECT CASE a + 1 WHEN b THEN i * 2 ELSE -i END AS x, coalesce(i + 1, a - 1) AS y FROM m",
        "SELECT a - 1 AS x FROM m UNION ALL SELECT -i FROM m",
        "SELECT max(-i) AS x FROM (SELECT i * a AS i FROM m LIMIT 5) AS n",
        "WITH c AS (SELECT a * 2 AS d FROM m) SELECT sum(d + 1) AS s, sum(d) + 3 AS t FROM c",
        "SELECT count(DISTINCT a + 1) AS d, sum(b - 1) AS s FROM m",
    ] {
        let query = sql.plan(text, &[table()], true).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let walked = query.plan.logical.apply_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            node.apply_expressions(|expr| {
                expr.apply(|part| {
                    let whole = |e: &Expr| e.get_type(&schema).unwrap().is_integer();
                    let left = match part {
                        Expr::Negative(of) => whole(of) && !matches!(**of, Expr::Literal(..)),
                        Expr::BinaryExpr(binary) => {
                            let op = binary.op;
                            (op == Operator::Plus
                                || op == Operator::Minus
                                || op == Operator::Multiply)
                                && whole(&binary.left)
                                && whole(&binary.right)
                        }
                        _ => false,
                    };
                    assert!(!left, "{text}: {part}\n{}", query.explain());
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        });
        walked.unwrap();
    }
}

/// What is wider below is so for whoever reads it, also from within a subquery.
#[tokio::test]
async fn negations_are_wide_for_all_who_read_them() {
    let sql = Sql::new(64 << 20).unwrap();
    for (text, result) in [
        ("SELECT -i AS x FROM m UNION ALL SELECT i AS x FROM m WHERE a < 0", "32768"),
        ("SELECT -x AS x FROM (SELECT -i AS x FROM m) AS n", "-32768"),
        ("SELECT max(x) + 1 AS x FROM (SELECT DISTINCT -i AS x FROM m) AS n", "32769"),
        // Both are 16 bits wide for one who does not know what became of `x`.
        (
            "SELECT x FROM (SELECT -(-i) AS x FROM m) AS n \
             WHERE EXISTS (SELECT 1 FROM m WHERE m.i = n.x)",
            "-32768",
        ),
        (
            "SELECT x FROM (SELECT -i AS x, a FROM m) AS n \
             WHERE EXISTS (SELECT 1 FROM m WHERE m.i = n.x - 65536)",
            "32768",
        ),
        (
            "SELECT x FROM (SELECT -i AS x, a FROM m) AS n \
             WHERE x IN (SELECT -m.i FROM m WHERE m.a = n.a AND -m.i = n.x)",
            "32768",
        ),
        (
            "SELECT (SELECT max(m.a) FROM m WHERE m.i = n.x - 65536) AS x \
             FROM (SELECT -i AS x FROM m) AS n",
            "40000",
        ),
    ] {
        let mut query =
            sql.plan(text, &[table()], true).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        let bounds = Some(Bounds { start: 0, end: 10 });
        let rows = query.execute(vec![vec![registers()]], bounds).await;
        let rows = rows.unwrap_or_else(|e| panic!("{text}: {e:?}\n{}", query.explain()));
        assert_eq!(array_value_to_string(rows[0].column(0), 0).unwrap(), result, "{text}");
    }
}

/// Conditions of routes and windows are planned in another way.
#[test]
fn conditions_do_not_wrap() {
    let sql = Sql::new(1 << 20).unwrap();
    let holds = |text: &str| {
        let condition = sql.condition(text, &registers().schema()).unwrap();
        condition.holds(&registers()).map(|holds| holds.value(0)).map_err(|e| e.message)
    };
    assert_eq!(holds("a + b > 80000 AND -i = 32768"), Ok(true));
    assert!(holds("most + a > 0").unwrap_err().starts_with("`most + a`: 9223372036854775807"));
}

/// Columns keep the names that they would have.
#[test]
fn names_stay() {
    let sql = "SELECT a + b, (a - b) * 2, -i, w - 1, sum(-i * 3) FROM m GROUP BY a, b, i, w";
    let query = Sql::new(1 << 20).unwrap().plan(sql, &[table()], true);
    let schema = query.unwrap().schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    // As DataFusion calls them.
    let expected = [
        "m.a + m.b",
        "m.a - m.b * Int64(2)",
        "(- m.i)",
        "m.w - Int64(1)",
        "sum((- m.i) * Int64(3))",
    ];
    assert_eq!(names, expected);
}

/// What a version before remembered for a call is found under the same name.
#[test]
fn calls_are_said_with_operators() {
    let schema = DFSchema::try_from(registers().schema()).unwrap();
    let sql = Sql::new(1 << 20).unwrap();
    let said = |sql: &Sql| {
        let state = sql.bare_state(None).unwrap();
        let expr = state.create_logical_expr("abs(a + b * 2 - w)", &schema).unwrap();
        as_operators(expr).unwrap().to_string()
    };
    let before = "abs(CAST(a AS Int64) + CAST(b AS Int64) * Int64(2) - CAST(w AS Int64))";
    assert_eq!((said(&sql), said(&sql.as_before().unwrap())), (before.into(), before.into()));
}
