//! Counts the tables that a text reads once each CTE is put in the places that name it, and the columns
//! that its SELECTs are over.
//!
//! A chain of CTEs that each join the one before with itself doubles with each link: fourteen links
//! are 16,384 tables, over which the planner takes minutes. So it does over eight tables of 1,000
//! columns that are joined, or 150 CTEs over one. The counts are upper bounds by tokens, made
//! before any plan is. It knows no grammar beyond where a table and a list of columns can stand.

use std::collections::HashMap;

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// What stands between commas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Lists {
    #[default]
    Other,
    /// Between SELECT and FROM.
    Columns,
    Tables,
}

/// What is inside one pair of parentheses.
#[derive(Default)]
struct Level {
    /// What is read in it.
    read: Read,
    /// Columns of the widest thing that is read in it.
    widest: u64,
    /// The columns that are named by its SELECTs; none where it has none, or names all by `*`.
    named: Option<u64>,
    star: bool,
    /// What a comma is followed by.
    lists: Lists,
    /// The CTE that it defines.
    defines: Option<String>,
    /// The arguments of a function, such as `extract(second FROM time)`: no table stands there.
    call: bool,
    /// How many things are grouped by each other, where this is `CUBE (…)` or the like.
    grouping: bool,
}

/// What stands in a FROM, or all of it.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    tables: u64,
    /// Its columns.
    columns: u64,
    /// Columns of all SELECTs inside, in sum.
    work: u64,
}

impl Read {
    fn add(&mut self, other: Self) {
        self.tables = self.tables.saturating_add(other.tables);
        self.columns = self.columns.saturating_add(other.columns);
        self.work = self.work.saturating_add(other.work);
    }

    fn max(self, other: Self) -> Self {
        Self {
            tables: self.tables.max(other.tables),
            columns: self.columns.max(other.columns),
            work: self.work.max(other.work),
        }
    }
}

impl Level {
    fn add(&mut self, read: Read) {
        self.widest = self.widest.max(read.columns);
        self.read.add(read);
    }

    /// What it is for who reads it.
    fn closed(&self) -> Read {
        let columns = match self.named {
            Some(named) if !self.star => named,
            _ => self.read.columns,
        };
        let work = self.read.work.saturating_add(self.read.columns);
        Read { tables: self.read.tables, columns, work }
    }
}

/// What a text amounts to; all saturating.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expansion {
    /// Tables that are read.
    pub(super) tables: u64,
    /// Columns that one SELECT has beside those of the widest table that it reads, at most.
    pub(super) joined_columns: u64,
    /// Columns of all SELECTs, in sum.
    pub(super) columns: u64,
    /// Columns of the widest thing that is read.
    pub(super) widest: u64,
    /// Terms in CUBE, ROLLUP and GROUPING SETS.
    pub(super) grouping_terms: u64,
}

/// Counts a text's tokens, which have no white space among them. `width` says how many columns the
/// table of a name has.
pub(super) fn expand(tokens: &[TokenWithSpan], width: &dyn Fn(&str) -> u64) -> Expansion {
    let mut levels = vec![Level::default()];
    let mut ctes: HashMap<String, Read> = HashMap::new();
    let mut all = Expansion::default();
    // A table may stand at the token.
    let mut expected = false;
    for (at, TokenWithSpan { token, .. }) in tokens.iter().enumerate() {
        let inside = levels.len() > 1;
        let Some(level) = levels.last_mut() else { break };
        let was_expected = std::mem::take(&mut expected);
        match token {
            Token::LParen => {
                let opened = open(tokens, at, was_expected);
                all.grouping_terms += u64::from(opened.grouping);
                expected = was_expected;
                levels.push(opened);
            }
            Token::RParen if inside => {
                let Some(closed) = levels.pop() else { break };
                all.note(&closed);
                let read = closed.closed();
                match (closed.defines, levels.last_mut()) {
                    (Some(name), _) => {
                        all.columns = all.columns.saturating_add(read.work);
                        // Another one of this name may stand elsewhere: the larger one counts.
                        let known = ctes.entry(name).or_default();
                        *known = read.max(*known);
                        known.tables = known.tables.max(1);
                    }
                    (None, Some(outer)) => outer.add(read),
                    (None, None) => {}
                }
            }
            Token::Comma => {
                expected = level.lists == Lists::Tables;
                all.grouping_terms += u64::from(level.grouping);
                if level.lists == Lists::Columns {
                    level.named = level.named.map(|named| named + 1);
                }
            }
            Token::Mul if level.lists == Lists::Columns => level.star |= names_all(tokens, at),
            Token::Word(word) if is_keyword(word, Keyword::SELECT) => {
                level.call = false;
                level.lists = Lists::Columns;
                level.named = Some(level.named.unwrap_or(0) + 1);
            }
            Token::Word(word) if is_keyword(word, Keyword::FROM) && !level.call => {
                level.lists = Lists::Tables;
                expected = true;
            }
            Token::Word(word) if is_keyword(word, Keyword::JOIN) => {
                level.lists = Lists::Tables;
                expected = true;
            }
            Token::Word(word) if is_keyword(word, Keyword::LATERAL) => expected = was_expected,
            Token::Word(word) if ends_tables(word) => level.lists = Lists::Other,
            Token::Word(word) if was_expected => {
                let name = name_of(word);
                let table = || Read { tables: 1, columns: width(&name), work: 0 };
                level.add(ctes.get(&name).copied().unwrap_or_else(table));
            }
            _ => {}
        }
    }
    for level in &levels {
        all.note(level);
        all.tables = all.tables.saturating_add(level.read.tables);
        all.columns = all.columns.saturating_add(level.closed().work);
    }
    all
}

impl Expansion {
    fn note(&mut self, level: &Level) {
        let beside = level.read.columns.saturating_sub(level.widest);
        self.joined_columns = self.joined_columns.max(beside);
        self.widest = self.widest.max(level.widest);
    }
}

/// Whether the asterisk at `at` stands for all columns: `SELECT *`, `, *` or `t.*`.
fn names_all(tokens: &[TokenWithSpan], at: usize) -> bool {
    match at.checked_sub(1).and_then(|before| tokens.get(before)).map(|t| &t.token) {
        Some(Token::Comma | Token::Period) => true,
        Some(Token::Word(word)) => {
            is_keyword(word, Keyword::SELECT) || is_keyword(word, Keyword::DISTINCT)
        }
        _ => false,
    }
}

/// What the parenthesis at `at` opens.
fn open(tokens: &[TokenWithSpan], at: usize, table_expected: bool) -> Level {
    let word = |back: usize| match tokens.get(at.wrapping_sub(back)).map(|t| &t.token) {
        Some(Token::Word(word)) => Some(word),
        _ => None,
    };
    let Some(before) = word(1) else {
        return Level { lists: tables_where(table_expected), ..Level::default() };
    };
    if is_keyword(before, Keyword::AS) || is_keyword(before, Keyword::MATERIALIZED) {
        return Level { defines: defined(tokens, at), ..Level::default() };
    }
    let grouping = [Keyword::CUBE, Keyword::ROLLUP, Keyword::SETS];
    if grouping.iter().any(|keyword| is_keyword(before, *keyword)) {
        return Level { grouping: true, ..Level::default() };
    }
    let call = before.quote_style.is_some()
        || before.keyword == Keyword::NoKeyword
        || matches!(
            before.keyword,
            Keyword::EXTRACT | Keyword::TRIM | Keyword::SUBSTRING | Keyword::OVERLAY
        );
    Level { call, lists: tables_where(table_expected), ..Level::default() }
}

fn tables_where(expected: bool) -> Lists {
    if expected { Lists::Tables } else { Lists::Other }
}

/// The name of the CTE whose body begins with the parenthesis at `at`: `name [(columns)] AS [[NOT]
/// MATERIALIZED] (`.
fn defined(tokens: &[TokenWithSpan], at: usize) -> Option<String> {
    let as_at = (0..at).rev().take(3).find(|i| match &tokens[*i].token {
        Token::Word(word) => is_keyword(word, Keyword::AS),
        _ => false,
    })?;
    let mut name_at = as_at.checked_sub(1)?;
    if tokens[name_at].token == Token::RParen {
        let open = (0..name_at).rev().find(|i| tokens[*i].token == Token::LParen)?;
        name_at = open.checked_sub(1)?;
    }
    match &tokens[name_at].token {
        Token::Word(word) => Some(name_of(word)),
        _ => None,
    }
}

fn is_keyword(word: &Word, keyword: Keyword) -> bool {
    word.quote_style.is_none() && word.keyword == keyword
}

/// Words after which a comma is not followed by a table.
fn ends_tables(word: &Word) -> bool {
    word.quote_style.is_none()
        && matches!(
            word.keyword,
            Keyword::WHERE
                | Keyword::GROUP
                | Keyword::HAVING
                | Keyword::ORDER
                | Keyword::LIMIT
                | Keyword::QUALIFY
                | Keyword::WINDOW
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
        )
}

/// A name as DataFusion compares it.
fn name_of(word: &Word) -> String {
    if word.quote_style.is_some() { word.value.clone() } else { word.value.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    use super::*;

    fn expansion(sql: &str) -> Expansion {
        let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().unwrap();
        let tokens: Vec<_> =
            tokens.into_iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).collect();
        expand(&tokens, &|table| if table == "wide" { 100 } else { 2 })
    }

    fn counted(sql: &str) -> (u64, u64) {
        let Expansion { tables, grouping_terms, .. } = expansion(sql);
        (tables, grouping_terms)
    }

    /// Columns beside those of the widest table, and those of all SELECTs.
    #[test]
    fn columns_of_selects() {
        for (sql, joined, all) in [
            ("SELECT a FROM wide", 0, 100),
            ("SELECT * FROM wide, m, m", 4, 104),
            ("SELECT * FROM wide JOIN wide AS w USING (n)", 100, 200),
            // The outer one is over as many columns as the inner one names.
            ("SELECT a FROM (SELECT a, b, max(c, d) FROM wide)", 0, 103),
            ("SELECT a FROM (SELECT count(*), a * b AS c FROM wide)", 0, 102),
            ("SELECT a FROM (SELECT DISTINCT * FROM wide)", 0, 200),
            ("SELECT a FROM (SELECT w.*, 1 FROM wide w)", 0, 200),
            ("SELECT n FROM m WHERE n > (SELECT max(n) FROM wide)", 1, 103),
            ("SELECT n FROM wide UNION ALL SELECT n FROM wide", 100, 200),
            // Once where it is defined, and wherever it is named.
            ("WITH x AS (SELECT * FROM wide) SELECT a FROM x, x", 100, 100 + 2 * 100 + 200),
        ] {
            let Expansion { joined_columns, columns, .. } = expansion(sql);
            assert_eq!((joined_columns, columns), (joined, all), "{sql}");
        }
    }

    #[test]
    fn one_line_per_text() {
        for (sql, tables) in [
            ("SELECT a, b FROM m", 1),
            ("SELECT a, b FROM m, o, \"O\" WHERE a IN (1, 2, 3) ORDER BY a, b", 3),
            ("SELECT * FROM m a JOIN m b ON a.n = b.n JOIN (SELECT * FROM o) c ON c.n = a.n, m", 4),
            ("SELECT * FROM (m JOIN o ON m.n = o.n)", 2),
            ("SELECT extract(second FROM time), substring(d FROM 2) FROM m", 1),
            ("SELECT * FROM m WHERE n > (SELECT max(n) FROM o) AND EXISTS (SELECT 1 FROM o, o)", 4),
            ("SELECT n FROM m UNION ALL SELECT n FROM o", 2),
            ("WITH x AS (SELECT * FROM m) SELECT * FROM x, x, X", 3),
            ("WITH x (a, b) AS (SELECT n, n FROM m, o) SELECT x.a, x.b FROM x JOIN x y ON true", 4),
            ("WITH x AS NOT MATERIALIZED (FROM m, m) SELECT * FROM x", 2),
            (
                "WITH a AS (SELECT * FROM m), b AS (SELECT * FROM a, a), c AS (SELECT * FROM b, b) \
              SELECT * FROM c, c, LATERAL (SELECT * FROM c)",
                12,
            ),
            // A later one of the same name does not make it less.
            (
                "WITH a AS (SELECT * FROM m, m, m), b AS (WITH a AS (SELECT * FROM m) SELECT * FROM a) \
              SELECT * FROM a, b",
                6,
            ),
        ] {
            assert_eq!(counted(sql).0, tables, "{sql}");
        }
        let chain: Vec<String> =
            (1..100).map(|i| format!("c{i} AS (SELECT * FROM c{}, c{0})", i - 1)).collect();
        let chain = format!("WITH c0 AS (SELECT * FROM m), {} SELECT * FROM c99", chain.join(", "));
        assert_eq!(counted(&chain).0, u64::MAX, "2^99");
        for (sql, terms) in [
            ("SELECT a, b FROM m GROUP BY a, b", 0),
            ("SELECT a, b FROM m GROUP BY CUBE (a, b, c), ROLLUP(d, e)", 5),
            ("SELECT a FROM m GROUP BY GROUPING SETS ((a, b), (a), ())", 3),
        ] {
            assert_eq!(counted(sql).1, terms, "{sql}");
        }
    }
}
