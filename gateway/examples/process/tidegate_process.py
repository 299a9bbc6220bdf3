"""Serves a function to a Tidegate stream: from a record batch to a list of record batches.

    from tidegate_process import serve
    serve("/run/model/model.sock", lambda batch, window: [batch])

The function gets the results of one window (or batch) as one pyarrow.RecordBatch, and the window's bounds as a
pair of microseconds since 1970, or None. What it returns is cast to the columns that the configuration declares
under `process: columns:`; a value that does not fit is an error. An exception is a refusal of these rows: the
gateway counts them as failed and goes on. The gateway does not start this program: run it as a service of its own.

The wire: frames of `length u32 little-endian, kind u8, body`. The gateway begins with kind 1 (the columns that it
gives) and 2 (those that it wants), each an Arrow IPC stream without batches; we answer with kind 1 (what we give).
Then each kind 3 (rows, an Arrow IPC stream) is answered with kind 3, or with kind 4 (a refusal, UTF-8).
"""

import os
import socket
import struct
import threading

import pyarrow as pa

COLUMNS, WANTED, ROWS, REFUSAL = 1, 2, 3, 4
HEAD = struct.Struct("<IB")


def _receive(connection):
    head = connection.recv(HEAD.size, socket.MSG_WAITALL)
    if len(head) < HEAD.size:
        return None, None
    length, kind = HEAD.unpack(head)
    body = bytearray()
    while len(body) < length:
        piece = connection.recv(min(length - len(body), 1 << 20))
        if not piece:
            return None, None
        body += piece
    return kind, bytes(body)


def _send(connection, kind, body):
    connection.sendall(HEAD.pack(len(body), kind) + bytes(body))


def _encoded(schema, batches=()):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _rows(body):
    """The rows of a request as one batch, and the bounds of their window."""
    table = pa.ipc.open_stream(body).read_all()
    metadata = table.schema.metadata or {}
    bounds = [metadata.get(b"tidegate.window_" + end) for end in (b"start", b"end")]
    window = tuple(int(bound) for bound in bounds) if all(bounds) else None
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema), window


def _converse(connection, function):
    with connection:
        _receive(connection)
        kind, body = _receive(connection)
        if kind != WANTED:
            return
        wanted = pa.ipc.open_stream(body).schema
        _send(connection, COLUMNS, _encoded(wanted))
        while True:
            kind, body = _receive(connection)
            if kind != ROWS:
                return
            try:
                batch, window = _rows(body)
                results = [result.select(wanted.names).cast(wanted) for result in function(batch, window)]
                _send(connection, ROWS, _encoded(wanted, results))
            except Exception as error:  # the gateway is told, and others of its rows may be well
                _send(connection, REFUSAL, f"{type(error).__name__}: {error}".encode())


def serve(path, function):
    """Listens at `path` for ever; each connection, one for each stream, has a thread."""
    if os.path.exists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_converse, args=(connection, function), daemon=True).start()
