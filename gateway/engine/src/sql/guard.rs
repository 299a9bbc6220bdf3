//! Refuses SQL texts by their tokens, before any recursive code sees them.
//!
//! Promise: what passes is short and shallow enough for the parser, the planner and the evaluation
//! of expressions to run on a thread with 2 MiB of stack, and names no function of the clock. It
//! knows no grammar: it counts an upper bound of the depth that the syntax tree can have.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Word};

use super::SqlError;
use super::expansion::{Expansion, expand};

/// Longest SQL text in bytes.
pub(super) const TEXT_MAX: usize = 64 * 1024;
/// Deepest nesting of parentheses and CASE.
pub(super) const NESTED_MAX: usize = 50;
/// Longest chain of operators, counted through all open parentheses.
pub(super) const CHAIN_MAX: usize = 150;
/// Tables that are read at most, each as often as a CTE brings it in.
pub(super) const TABLES_MAX: u64 = 64;
/// Columns that one SELECT joins to those of its widest table at most. What the planner takes grows
/// with their square and more: some 2 s for as many, 7 s for twice as many (profile `dist`).
pub(super) const JOINED_COLUMNS_MAX: u64 = 4096;
/// Columns of all SELECTs in sum at most; of tables that are wider than this, four times their own.
pub(super) const SELECTED_COLUMNS_MAX: u64 = 32_768;
/// Terms in CUBE, ROLLUP and GROUPING SETS: CUBE makes 2^n groups of n.
const GROUPING_TERMS_MAX: u64 = 8;
/// Longest text in quotes in bytes: a column may repeat it in each row.
const LITERAL_MAX: usize = 4096;

const CLOCK: [&str; 7] = [
    "now",
    "today",
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
];

/// Checks a text. `windowed` says whether `window_start()` and `window_end()` have a meaning, `width`
/// how many columns the table of a name has.
pub(super) fn check(
    sql: &str,
    windowed: bool,
    width: &dyn Fn(&str) -> u64,
) -> Result<(), SqlError> {
    if sql.len() > TEXT_MAX {
        let length = sql.len();
        return Err(SqlError::new(format!("the SQL has {length} bytes; at most {TEXT_MAX}")));
    }
    let tokens = Tokenizer::new(&GenericDialect {}, sql)
        .tokenize_with_location()
        .map_err(|e| SqlError::new(e.message).at(e.location.line, e.location.column))?;
    let tokens: Vec<TokenWithSpan> =
        tokens.into_iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).collect();
    check_depth(&tokens)?;
    check_expansion(&expand(&tokens, width))?;
    for (at, token) in tokens.iter().enumerate() {
        if let Token::SingleQuotedString(text) = &token.token
            && text.len() > LITERAL_MAX
        {
            let message =
                format!("a text in quotes has {} bytes; at most {LITERAL_MAX}", text.len());
            return Err(SqlError::new(message).at(token.span.start.line, token.span.start.column));
        }
        let Token::Word(word) = &token.token else {
            continue;
        };
        let called = matches!(tokens.get(at + 1), Some(t) if t.token == Token::LParen);
        if let Some(refusal) = refuse_word(word, called, windowed) {
            return Err(refusal.at(token.span.start.line, token.span.start.column));
        }
    }
    Ok(())
}

fn check_expansion(expansion: &Expansion) -> Result<(), SqlError> {
    let Expansion { tables, joined_columns, columns, widest, grouping_terms } = *expansion;
    if tables > TABLES_MAX {
        let message = format!("more than {TABLES_MAX} tables are read");
        let hint = "a CTE (WITH …) counts wherever it is named; devices may share a table";
        return Err(SqlError::new(message).hint(hint));
    }
    let named = "name the columns that are needed, in a subquery of each table";
    if joined_columns > JOINED_COLUMNS_MAX {
        let message =
            format!("more than {JOINED_COLUMNS_MAX} columns of several tables are joined");
        return Err(SqlError::new(message).hint(named));
    }
    if columns > SELECTED_COLUMNS_MAX.max(widest.saturating_mul(4)) {
        let message =
            format!("all SELECTs together are over more than {SELECTED_COLUMNS_MAX} columns");
        return Err(SqlError::new(message).hint(named));
    }
    if grouping_terms > GROUPING_TERMS_MAX {
        let message =
            format!("more than {GROUPING_TERMS_MAX} terms in CUBE, ROLLUP and GROUPING SETS");
        return Err(SqlError::new(message).hint("CUBE of n columns makes 2^n groups"));
    }
    Ok(())
}

fn refuse_word(word: &Word, called: bool, windowed: bool) -> Option<SqlError> {
    if word.quote_style.is_some() {
        return None;
    }
    let name = word.value.to_ascii_lowercase();
    let reserved = name.starts_with("current_") && word.keyword != Keyword::NoKeyword;
    if CLOCK.contains(&name.as_str()) && (called || reserved) {
        let hint = if windowed {
            "use the column `time`, `window_start()` or `window_end()`: results must not depend on \
             when they are computed"
        } else {
            "use the column `time`: results must not depend on when they are computed"
        };
        return Some(SqlError::new(format!("`{name}` is not available")).hint(hint));
    }
    if called && !windowed && (name == "window_start" || name == "window_end") {
        return Some(
            SqlError::new(format!("`{name}()` has no meaning without a window"))
                .hint("add `window:` to the stream"),
        );
    }
    None
}

/// One open parenthesis or CASE.
#[derive(Default)]
struct Level {
    /// Operators since the last separator.
    operators: usize,
    /// Set operations and joins, which chain through the whole level.
    clauses: usize,
    case: bool,
}

fn check_depth(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let mut levels = vec![Level::default()];
    // Sum of the operators and clauses of all open levels.
    let mut chain = 0;
    for TokenWithSpan { token, span } in tokens {
        let Some(level) = levels.last_mut() else {
            break;
        };
        match token {
            Token::LParen | Token::LBracket | Token::LBrace => levels.push(Level::default()),
            Token::RParen | Token::RBracket | Token::RBrace => {
                while let Some(closed) = levels.pop_if(|_| true) {
                    chain -= closed.operators + closed.clauses;
                    if !closed.case {
                        break;
                    }
                }
                if levels.is_empty() {
                    // One parenthesis too many; the parser will say so.
                    levels.push(Level::default());
                }
            }
            Token::Comma => chain -= std::mem::take(&mut level.operators),
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::CASE => levels.push(Level { case: true, ..Level::default() }),
                Keyword::END if level.case => {
                    chain -= level.operators + level.clauses;
                    levels.pop();
                }
                keyword if separates(keyword) => chain -= std::mem::take(&mut level.operators),
                Keyword::UNION | Keyword::INTERSECT | Keyword::EXCEPT | Keyword::JOIN => {
                    level.clauses += 1;
                    chain += 1;
                }
                keyword if operates(keyword) => {
                    level.operators += 1;
                    chain += 1;
                }
                _ => {}
            },
            Token::Word(_) | Token::Number(..) | Token::Period | Token::SemiColon => {}
            token if is_text(token) => {}
            _ => {
                level.operators += 1;
                chain += 1;
            }
        }
        if levels.len() > NESTED_MAX || chain > CHAIN_MAX {
            let what = if chain > CHAIN_MAX {
                format!("more than {CHAIN_MAX} operators in one chain")
            } else {
                format!("more than {NESTED_MAX} levels of parentheses")
            };
            return Err(SqlError::new(what)
                .at(span.start.line, span.start.column)
                .hint("use IN (…), CASE or a CTE (WITH …)"));
        }
    }
    Ok(())
}

fn is_text(token: &Token) -> bool {
    matches!(
        token,
        Token::SingleQuotedString(_) | Token::DoubleQuotedString(_) | Token::HexStringLiteral(_)
    )
}

fn separates(keyword: Keyword) -> bool {
    matches!(
        keyword,
        Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::ON
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE
    )
}

fn operates(keyword: Keyword) -> bool {
    matches!(
        keyword,
        Keyword::AND
            | Keyword::OR
            | Keyword::XOR
            | Keyword::NOT
            | Keyword::IS
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::BETWEEN
            | Keyword::DIV
            | Keyword::COLLATE
            | Keyword::AT
            | Keyword::INTERVAL
    )
}
