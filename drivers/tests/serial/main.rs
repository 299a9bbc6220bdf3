//! The serial drivers on real ports: ptys that are unplugged and plugged in again.
//!
//! Frames are written by hand after "MODBUS over Serial Line V1.02"; none passes through an encoder
//! that the drivers use. Descriptors, memory and processor time are those of the process, so the
//! tests run one after another.

#[cfg(test)]
mod process;
#[cfg(test)]
mod pty;
#[cfg(test)]
mod unplugged;
