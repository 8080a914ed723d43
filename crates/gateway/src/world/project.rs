//! projection
