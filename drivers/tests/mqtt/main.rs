//! The MQTT drivers against brokers: a scripted one that speaks raw bytes, and mosquitto.
//!
//! Bytes are written by hand after MQTT 3.1.1; none passes through an encoder that the drivers use.

#[cfg(test)]
mod broker;
#[cfg(test)]
mod inbound;
#[cfg(test)]
mod inbound_faults;
#[cfg(test)]
mod mosquitto;
#[cfg(test)]
mod outbound;
#[cfg(test)]
mod outbound_faults;
