//! Drives the real thing.
