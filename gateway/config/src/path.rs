//! Paths into a document: keys of mappings and indices of lists.

use std::fmt;

/// One step into a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// An item of a list, from 0.
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// The way from the document's root to a value; shown as `streams[0].window.tumbling`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// This path and one step more.
    #[must_use]
    pub fn then(&self, step: impl Into<Step>) -> Self {
        let mut steps = self.0.clone();
        steps.push(step.into());
        Self(steps)
    }

    /// This path and several steps more, written with dots and brackets: `points[3].bit`.
    #[must_use]
    pub fn join(&self, steps: &str) -> Self {
        let mut path = self.clone();
        for part in steps.split(['.', '[']).filter(|part| !part.is_empty()) {
            path.0.push(match part.strip_suffix(']').and_then(|index| index.parse().ok()) {
                Some(index) => Step::Index(index),
                None => Step::Key(part.to_owned()),
            });
        }
        path
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if position == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_and_joined() {
        let path = Path::default().then("devices").then(2).join("driver.modbus.points[3].bit");
        assert_eq!(path.to_string(), "devices[2].driver.modbus.points[3].bit");
        assert_eq!(path.0[5], Step::Index(3));
    }
}
