// Runs the engine of Perfetto's web page under Node.js: node trace_processor.js FOLDER_OF_THE_PAGE
//
// The page's engine is a web worker that loads the trace processor, compiled to WebAssembly, and passes messages
// (protocol buffers) between it and a port. Here the port is standard input and output: each message stands behind
// its length in four bytes, little-endian.

"use strict";

const fs = require("fs");
const path = require("path");

const folder = process.argv[2];

function put(data) {
  for (let at = 0; at < data.length; ) at += fs.writeSync(1, data, at);
}

const port = {
  postMessage(message) {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(message.length);
    put(length);
    put(message);
  },
};

// The engine loads its WebAssembly with a synchronous request, as workers may.
class FileRequest {
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    const bytes = fs.readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

const location = { href: "http://localhost/engine_bundle.js", protocol: "http:", host: "localhost" };
const worker = { location };
const say = { log() {}, warn: console.error, error: console.error };
const code = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
// Named as a worker's globals; without `process` the code does not take this for Node.js, which it was not built for.
const engine = new Function("self", "location", "WorkerGlobalScope", "process", "XMLHttpRequest", "console", code);
engine(worker, location, Object, undefined, FileRequest, say);
worker.onmessage({ data: port });

// One turn later the engine has its buffer for requests.
setImmediate(() => {
  const piece = Buffer.alloc(1 << 20);
  let rest = Buffer.alloc(0);
  for (;;) {
    while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32LE()) {
      const end = 4 + rest.readUInt32LE();
      port.onmessage({ data: new Uint8Array(rest.subarray(4, end)) });
      rest = rest.subarray(end);
    }
    const count = fs.readSync(0, piece);
    if (count === 0) return;
    rest = Buffer.concat([rest, piece.subarray(0, count)]);
  }
});
