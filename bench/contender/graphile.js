// graphile-worker as a contender of the benchmark. The driver (bench/src/graphile.rs) runs this; PG… variables name
// the server. With a batch above 1 it is configured as on its page about performance: a local queue of that size, and
// completion in batches. Otherwise it fetches and completes each job by itself, as it does by default.
//
//   node graphile.js install              creates its schema
//   node graphile.js consume OPTIONS      works off the jobs that are there
//   node graphile.js cycle OPTIONS        each session adds a job, and the next one when that has been done
//
// OPTIONS is JSON: {"sessions", "seconds", "bytes", "batch"}. The last line of the output is JSON:
// {"messages", "seconds", "latencies": [microseconds]}.
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";

const TASK = "bench";
const WARM_UP = 2;
const silent = new Logger(() => () => {});
const [mode, json] = process.argv.slice(2);
const options = json ? JSON.parse(json) : {};

// graphile-worker wants to see that errors of idle connections are handled. None must happen here.
function connect(max) {
  const fail = (error) => {
    throw error;
  };
  const pool = new pg.Pool({ max });
  pool.on("error", fail);
  pool.on("connect", (client) => client.on("error", fail));
  return pool;
}

async function left(pool) {
  const { rows } = await pool.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs");
  return rows[0].n;
}

const batching = { localQueue: { size: options.batch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

function start(pool, handle) {
  return run({
    pgPool: pool,
    noHandleSignals: true,
    logger: silent,
    taskList: { [TASK]: handle },
    preset: {
      worker: {
        concurrentJobs: options.sessions,
        ...(options.batch > 1 ? batching : {}),
      },
    },
  });
}

// What the driver's payloads look like, of the same size.
function payload(n) {
  const order = { order: `ORD-${String(n % 1000).padStart(6, "0")}`, cents: 1000 + (n % 1000), note: "" };
  const missing = Math.max(0, options.bytes - JSON.stringify(order).length);
  const letter = () => String.fromCharCode(97 + Math.floor(Math.random() * 26));
  order.note = Array.from({ length: missing }, letter).join("");
  return JSON.stringify(order);
}

async function consume(pool, admin) {
  let warm;
  const isWarm = new Promise((resolve) => (warm = resolve));
  let begun = 0;
  const runner = await start(pool, async () => {
    begun += 1;
    if (begun === WARM_UP * options.sessions) warm();
  });
  await isWarm;
  const before = await left(admin);
  const from = performance.now();
  let after = before;
  let until = from;
  // A job counts when its row is gone.
  while (after > 0 && until - from < options.seconds * 1000) {
    await sleep(20);
    after = await left(admin);
    until = performance.now();
  }
  return { runner, result: { messages: before - after, seconds: (until - from) / 1000, latencies: [] } };
}

async function cycle(pool, admin) {
  const producers = connect(options.sessions);
  const waiting = new Map();
  const early = new Set();
  const runner = await start(pool, async (_, { job }) => {
    const resolve = waiting.get(job.id);
    if (resolve) resolve();
    else early.add(job.id);
  });
  const text = `SELECT id::text FROM graphile_worker.add_job('${TASK}', $1::json)`;
  let added = 0;
  const turn = async (n) => {
    const { rows } = await producers.query({ name: "add", text, values: [payload(n)] });
    added += 1;
    const { id } = rows[0];
    if (early.delete(id)) return;
    await new Promise((resolve) => waiting.set(id, resolve));
    waiting.delete(id);
  };
  const sessions = Array.from({ length: options.sessions }, (_, n) => n);
  const warmUp = async (n) => {
    for (let step = 0; step < WARM_UP; step++) await turn(n * 7919 + step);
  };
  await Promise.all(sessions.map(warmUp));

  const before = added - (await left(admin));
  const from = performance.now();
  const latencies = [];
  const work = async (n) => {
    for (let step = WARM_UP; performance.now() - from < options.seconds * 1000; step++) {
      const began = performance.now();
      await turn(n * 7919 + step);
      latencies.push(Math.round((performance.now() - began) * 1000));
    }
  };
  await Promise.all(sessions.map(work));
  const messages = added - (await left(admin)) - before;
  const seconds = (performance.now() - from) / 1000;
  await producers.end();
  return { runner, result: { messages, seconds, latencies } };
}

async function main() {
  const pool = connect((options.sessions ?? 1) + 1);
  if (mode === "install") {
    await runMigrations({ pgPool: pool, logger: silent });
  } else {
    const admin = connect(1);
    const { runner, result } = await { consume, cycle }[mode](pool, admin);
    await runner.stop();
    await admin.end();
    console.log(JSON.stringify(result));
  }
  await pool.end();
}

await main();
