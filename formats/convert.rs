//! Conversions between the formats.
