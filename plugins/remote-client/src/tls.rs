//! TLS to a host.

use crate::connection::{BoxError, ConnectOptions};
use rustls::Error;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Starts TLS with the host of this name or address.
pub(crate) async fn connect(
    stream: TcpStream,
    host: &str,
    options: &ConnectOptions,
) -> Result<TlsStream<TcpStream>, BoxError> {
    let mut config = match &options.tls {
        Some(config) => config.clone(),
        None => corral_client_tls::client_config(options.ca_file.as_deref())
            .map_err(|error| format!("{error}; name a PEM file in ConnectOptions::ca_file"))?,
    };
    // Both bodies stay open, on a connection of their own.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned())?;
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    connecting.await.map_err(|error| {
        let cause = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(Error::InvalidCertificate(_)) => {
                format!("{error}; ConnectOptions::ca_file names the certificates to trust").into()
            }
            _ => error.into(),
        }
    })
}
