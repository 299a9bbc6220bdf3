//! Lookups: small tables that are loaded as a whole and joined by SQL, such as limits, names and
//! recipes.
//!
//! Columns are declared, because SQL is planned with no source present. How a source is read is not
//! known here. Source: design page "The engine", section Joins, lookups, processors.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use schemars::{JsonSchema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_drivers::south::mqtt::FieldType;
use tidegate_drivers::types::{Bytes, Name, Span};

/// A table that is loaded as a whole and loaded again on a schedule.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupSection {
    /// The table's name in SQL; one with a hyphen needs double quotes there.
    pub name: Name,
    /// Where the rows come from.
    pub source: LookupSource,
    /// The columns; what the source has besides is passed over.
    pub columns: Vec<LookupColumn>,
    /// How long after one load the next one begins. One that fails keeps the last good rows.
    #[serde(default = "default_refresh")]
    pub refresh: Span,
    /// Rows at most; a source with more is refused as a whole.
    #[serde(default = "default_rows_max")]
    pub max_rows: u32,
    /// Bytes of the source at most, or of what a query gives; a larger one is refused as a whole.
    #[serde(default = "default_bytes_max")]
    pub max_bytes: Bytes,
}

/// Where the rows of a lookup come from.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LookupSource {
    /// Comma separated values (RFC 4180); the first line names the columns. An empty field is
    /// missing, one of two quotes is an empty text.
    Csv(FileSource),
    /// An array of objects, or an object a line.
    Json(FileSource),
    /// The same from a server.
    Http(HttpSource),
    /// The rows of a query to an SQLite database; for programs that are built with the feature
    /// `sqlite`. A bool is 0 or 1 there, and NULL is missing.
    Sqlite(SqliteSource),
}

impl LookupSource {
    /// The source's name as it is written in the document.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Csv(_) => "csv",
            Self::Json(_) => "json",
            Self::Http(_) => "http",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// How the text is written; none where the source is no text.
    pub fn format(&self) -> Option<LookupFormat> {
        match self {
            Self::Csv(_) => Some(LookupFormat::Csv),
            Self::Json(_) => Some(LookupFormat::Json),
            Self::Http(http) => Some(http.format),
            Self::Sqlite(_) => None,
        }
    }
}

/// A file of this machine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSource {
    /// The file; a relative path begins in the folder of the configuration.
    pub path: String,
}

/// A query to an SQLite database of this machine.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqliteSource {
    /// The database; a relative path begins in the folder of the configuration. It is read only,
    /// and others may write it meanwhile.
    pub path: String,
    /// One SELECT, which may take 30 s; its columns are found by their names.
    pub query: String,
}

/// What a server answers to GET.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSource {
    /// The address. An answer other than 200 is a failed load, also one that points elsewhere.
    pub url: HttpUrl,
    /// How the answer is written.
    #[serde(default)]
    pub format: LookupFormat,
    /// Certificates (PEM) of those who may vouch for an `https` server; a relative path begins in
    /// the folder of the configuration.
    #[serde(default = "default_ca_file")]
    pub ca_file: String,
    /// How long the whole answer may take.
    #[serde(default = "default_timeout")]
    pub timeout: Span,
}

/// How the rows of a lookup are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LookupFormat {
    /// Comma separated values (RFC 4180); the first line names the columns.
    Csv,
    /// An array of objects, or an object a line.
    #[default]
    Json,
}

/// A column of a lookup.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupColumn {
    /// The column's name in SQL.
    pub name: Name,
    /// The column's type. A row with a value of another type is refused, and with it the load.
    #[serde(rename = "type")]
    pub value_type: FieldType,
    /// The column's name in the source, or the path to a field of JSON with dots between the keys;
    /// the name where left out.
    #[serde(default)]
    pub path: Option<String>,
}

impl LookupColumn {
    /// What the source calls it.
    pub fn source_name(&self) -> &str {
        self.path.as_deref().unwrap_or(self.name.as_str())
    }
}

impl LookupSection {
    /// The table's columns; any value may be missing.
    pub fn schema(&self) -> SchemaRef {
        let field = |c: &LookupColumn| Field::new(c.name.as_str(), c.value_type.data_type(), true);
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }

    /// Takes relative paths from `folder`.
    pub(crate) fn anchor(&mut self, folder: &Path) {
        let path = match &mut self.source {
            LookupSource::Csv(file) | LookupSource::Json(file) => &mut file.path,
            LookupSource::Http(http) => &mut http.ca_file,
            LookupSource::Sqlite(sqlite) => &mut sqlite.path,
        };
        if Path::new(path.as_str()).is_relative() {
            *path = folder.join(path.as_str()).display().to_string();
        }
    }
}

/// The address of a text on a server: `http://host[:port]/path` or `https://…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpUrl {
    /// Whether the server must show who it is, and nobody may listen.
    pub tls: bool,
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path and query, from the `/` on.
    pub path: String,
}

/// Why an address was refused; the text says what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: write `http://host/path` or `https://host:8443/path`")]
pub struct BadUrl(String);

impl HttpUrl {
    fn default_port(tls: bool) -> u16 {
        if tls { 443 } else { 80 }
    }

    /// Host and port as a request names them; a port that goes without saying is left out.
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == Self::default_port(self.tls) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

impl FromStr for HttpUrl {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        // What stands before an `@` may be a password: it is not repeated.
        let shown = match text.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => text.to_owned(),
        };
        let refuse = |why: &str| BadUrl(format!("`{shown}` {why}"));
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            (None, None) => return Err(refuse("is not an HTTP address")),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(refuse("holds a user or password"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or_else(|| refuse("lacks a `]`"))?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let plain = |c: char| c.is_ascii_graphic();
        if host.is_empty() || !host.chars().all(plain) {
            return Err(refuse("has no plain host name"));
        }
        if path.contains('#') || !path.chars().all(plain) {
            return Err(refuse("has a path with spaces, letters beyond ASCII or a `#`"));
        }
        let port = match port.map(str::parse) {
            None => Self::default_port(tls),
            Some(Ok(port)) if port > 0 => port,
            Some(_) => return Err(refuse("has no valid port")),
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { tls, host: host.to_owned(), port, path })
    }
}

impl<'de> Deserialize<'de> for HttpUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = HttpUrl;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, such as \"https://plant.local/limits.json\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HttpUrl, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for HttpUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for HttpUrl {
    fn schema_name() -> Cow<'static, str> {
        "HttpUrl".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        json_schema!({
            "type": "string",
            "pattern": "^https?://[^/@ ]+(/[^ #]*)?$",
            "description": "The address of a text on a server.",
            "examples": ["https://plant.local/limits.json"],
        })
    }
}

fn default_refresh() -> Span {
    Span::from_secs(300)
}

fn default_rows_max() -> u32 {
    100_000
}

fn default_bytes_max() -> Bytes {
    Bytes::from_mib(8)
}

fn default_timeout() -> Span {
    Span::from_secs(10)
}

/// Where Debian keeps the certificates that the machine trusts.
fn default_ca_file() -> String {
    "/etc/ssl/certs/ca-certificates.crt".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port, path, shown) in [
            ("http://a", "a", 80, "/", "http://a/"),
            ("https://a.b/c?d=e", "a.b", 443, "/c?d=e", "https://a.b/c?d=e"),
            ("http://a:8080/x/", "a", 8080, "/x/", "http://a:8080/x/"),
            ("https://[::1]:8443/x", "::1", 8443, "/x", "https://[::1]:8443/x"),
            ("http://a?x", "a", 80, "/?x", "http://a/?x"),
        ] {
            let url: HttpUrl = text.parse().unwrap();
            assert_eq!((url.host.as_str(), url.port, url.path.as_str()), (host, port, path));
            assert_eq!(url.to_string(), shown);
        }
        for text in
            ["ftp://a/", "http://", "http://a:0/", "http://a:x/", "http://a/ b", "https://[::1/x"]
        {
            text.parse::<HttpUrl>().unwrap_err();
        }
        let error = "http://me:secret@a/".parse::<HttpUrl>().unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("password"), "{error}");
    }
}
