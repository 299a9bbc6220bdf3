//! The Prometheus text format.
//!
//! Promise: text of the exposition format 0.0.4: HELP and TYPE for each family, its samples
//! together, label values escaped. Does not know: which metrics there are.
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/>, text format details.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use crate::console::PartState;

/// Media type of the text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Families written so far.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    /// Adds a family whose samples go up and down.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, fill: impl FnOnce(&mut Family<'_>)) {
        self.family(name, "gauge", help, fill);
    }

    /// Adds a family whose samples only grow; its name ends in `_total`.
    pub(crate) fn counter(&mut self, name: &str, help: &str, fill: impl FnOnce(&mut Family<'_>)) {
        self.family(name, "counter", help, fill);
    }

    /// The finished text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A family without samples leaves nothing behind.
    fn family(&mut self, name: &str, kind: &str, help: &str, fill: impl FnOnce(&mut Family<'_>)) {
        let mut family = Family { name, samples: String::new() };
        fill(&mut family);
        if !family.samples.is_empty() {
            let lines = ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"];
            self.text.extend(lines);
            self.text += &family.samples;
        }
    }
}

/// The samples of one family.
pub(crate) struct Family<'a> {
    name: &'a str,
    samples: String,
}

impl Family<'_> {
    /// Adds one sample.
    pub(crate) fn put(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.samples += self.name;
        for (i, (label, text)) in labels.iter().enumerate() {
            self.samples.extend([if i == 0 { "{" } else { "," }, label, "=\""]);
            escape_into(&mut self.samples, text);
            self.samples.push('"');
        }
        self.samples += if labels.is_empty() { " " } else { "} " };
        self.samples += &value.to_string();
        self.samples.push('\n');
    }

    /// Adds a sample where there is a value.
    pub(crate) fn put_known(&mut self, labels: &[(&str, &str)], value: Option<Float>) {
        if let Some(value) = value {
            self.put(labels, value);
        }
    }

    /// Adds a sample for each state: 1 for the one that the part is in, else 0.
    pub(crate) fn put_state(&mut self, kind: &str, name: &str, is: PartState) {
        for state in PartState::ALL {
            self.put(&[(kind, name), ("state", state.name())], u8::from(state == is));
        }
    }

    /// Adds a sample for each value of a further label.
    pub(crate) fn put_each(
        &mut self,
        kind: &str,
        name: &str,
        label: &str,
        values: &BTreeMap<String, u64>,
    ) {
        for (text, value) in values {
            self.put(&[(kind, name), (label, text)], value);
        }
    }
}

/// Escapes a label value: backslash, quote and line feed.
fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

/// A number as the format writes it: infinity has a sign.
pub(crate) struct Float(pub(crate) f64);

impl Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected text after the example of the format's specification.
    #[test]
    fn writes_a_family_as_the_specification_shows() {
        let mut page = Page::default();
        page.counter("http_requests_total", "The total number of HTTP requests.", |f| {
            f.put(&[("method", "post"), ("code", "200")], 1027);
            f.put(&[("method", "post"), ("code", "400")], 3);
        });
        page.gauge("something_weird", "What can be odd.", |f| {
            f.put(&[("problem", "division by zero")], Float(f64::INFINITY));
            f.put(&[], Float(f64::NEG_INFINITY));
            f.put_known(&[], Some(Float(f64::NAN)));
            f.put_known(&[], None);
            f.put(&[], Float(12.47));
        });
        page.gauge("nothing", "Has no samples.", |_| {});
        assert_eq!(
            page.into_text(),
            "# HELP http_requests_total The total number of HTTP requests.\n\
             # TYPE http_requests_total counter\n\
             http_requests_total{method=\"post\",code=\"200\"} 1027\n\
             http_requests_total{method=\"post\",code=\"400\"} 3\n\
             # HELP something_weird What can be odd.\n\
             # TYPE something_weird gauge\n\
             something_weird{problem=\"division by zero\"} +Inf\n\
             something_weird -Inf\n\
             something_weird NaN\n\
             something_weird 12.47\n"
        );
    }

    /// The specification's own example: `path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""`.
    #[test]
    fn escapes_label_values_as_the_specification_shows() {
        let mut page = Page::default();
        page.gauge("msdos_file_access_time_seconds", "Escaping.", |f| {
            let labels =
                [("path", r"C:\DIR\FILE.TXT"), ("error", "Cannot find file:\n\"FILE.TXT\"")];
            f.put(&labels, Float(1.458_255_915e9));
        });
        let line = page.into_text().lines().last().map(str::to_owned);
        assert_eq!(
            line.as_deref(),
            Some(
                r#"msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1458255915"#
            )
        );
    }
}
