//! One GET: the whole answer within bounds, or why not.
//!
//! Nothing is followed, kept or sent along: an answer other than 200 is a failure, each load makes a
//! connection of its own, and a server with TLS must show a certificate that the named file vouches
//! for. Source: RFC 9110, RFC 9112.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_LENGTH, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tidegate_config::{HttpSource, HttpUrl};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::AbortOnDropHandle;

/// Gets a text of at most `bytes_max`. Cancel safe.
pub(super) async fn get(source: &HttpSource, bytes_max: usize) -> Result<Vec<u8>, String> {
    let limit = source.timeout.duration();
    let answer = tokio::time::timeout(limit, connect_and_get(source, bytes_max)).await;
    answer.unwrap_or_else(|_| Err(format!("no whole answer within {}", source.timeout)))
}

async fn connect_and_get(source: &HttpSource, bytes_max: usize) -> Result<Vec<u8>, String> {
    let url = &source.url;
    let socket = TcpStream::connect((url.host.as_str(), url.port))
        .await
        .map_err(|error| format!("no connection to {}: {error}", url.authority()))?;
    if !url.tls {
        return ask(url, socket, bytes_max).await;
    }
    let config = tls(&source.ca_file).await?;
    let name = ServerName::try_from(url.host.clone())
        .map_err(|_| format!("`{}` is no name of a server", url.host))?;
    let socket = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .map_err(|error| format!("TLS with {}: {error}", url.authority()))?;
    ask(url, socket, bytes_max).await
}

async fn tls(ca_file: &str) -> Result<ClientConfig, String> {
    let pem = tokio::fs::read(ca_file).await.map_err(|error| format!("{ca_file}: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| format!("{ca_file}: {error}"))?;
        // A bundle may hold some that this TLS does not know; one that vouches is enough.
        roots.add_parsable_certificates([certificate]);
    }
    if roots.is_empty() {
        return Err(format!("{ca_file}: no certificate that can vouch"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

async fn ask(
    url: &HttpUrl,
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    bytes_max: usize,
) -> Result<Vec<u8>, String> {
    let words = |error: hyper::Error| format!("{}: {error}", url.authority());
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(words)?;
    // Ends with this request, however that ends.
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(&url.path)
        .header(HOST, url.authority())
        .header(USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "application/json, text/csv, */*")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(words)?;
    let status = answer.status();
    if status != hyper::StatusCode::OK {
        return Err(format!("{} answered {status}", url.authority()));
    }
    let length = answer.headers().get(CONTENT_LENGTH).and_then(|l| l.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > bytes_max) {
        return Err(too_long(bytes_max));
    }
    let text = body(answer.into_body(), bytes_max, url).await;
    drop(connection);
    text
}

async fn body(mut body: Incoming, bytes_max: usize, url: &HttpUrl) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("{}: {error}", url.authority()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if text.len() + data.len() > bytes_max {
            return Err(too_long(bytes_max));
        }
        text.extend_from_slice(&data);
    }
    Ok(text)
}

fn too_long(bytes_max: usize) -> String {
    format!("more than {bytes_max} bytes (`max_bytes`)")
}
