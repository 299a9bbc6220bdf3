//! Errors as `application/problem+json`.
//!
//! Promise: every error that a route answers has the members of RFC 9457 and a stable `code`.
//! Does not know: which routes exist.

use axum::Json;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;

use crate::console::{Applied, Reason};

/// One error answer.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    /// No page describes the problem type; `code` names it (RFC 9457, section 4.2.1).
    r#type: &'static str,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<Applied>,
}

impl Problem {
    /// A problem with the standard title of its status.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            hint: None,
            reasons: Vec::new(),
            applied: None,
        }
    }

    /// Says what would be right.
    pub(crate) fn hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Says what became of a configuration.
    pub(crate) fn applied(self, applied: Applied) -> Self {
        Self { applied: Some(applied), ..self }
    }

    /// Names the parts that are in the way.
    pub(crate) fn reasons(self, reasons: Vec<Reason>) -> Self {
        Self { reasons, ..self }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<axum::body::Body> {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self)).into_response();
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }
}
