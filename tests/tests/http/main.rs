//! The public listener: protocols, keys, bad and slow clients, routers before it, and shutdown.

mod bad_requests;
mod cors;
mod framed_responses;
mod http2;
mod keys;
mod routers;
mod shutdown;
mod slow_clients;
mod tls;
