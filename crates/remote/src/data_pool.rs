//! The data connections of a session, each with a thread. A thread takes tasks from one queue,
//! sends them as calls, and receives the replies in order.
//!
//! All tasks that are under way at once are either reads or writes: a side that sends bytes then
//! never waits for one that sends bytes, too.

use crate::compressed_calls::CompressedCalls;
use crate::data_stream::DataStream;
use crate::data_task::DataTask;
use crate::remote_message::RemoteReply;
use crate::site_route::SiteCompression;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io::{self, BufReader};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Calls without a reply on one connection.
pub(crate) const DEPTH: usize = 8;
/// Bytes that are received at a time where a reply is short.
const BUFFER: usize = 8 << 10;

/// What has happened to the tasks.
#[derive(Debug)]
pub(crate) enum DataEvent {
    /// A task has its reply. `len`: bytes of a read that are at the start of its room.
    Finished { task: DataTask, reply: Box<RemoteReply>, len: usize },
    /// A connection has ended with these tasks.
    Lost { connection: u32, tasks: Vec<DataTask> },
}

#[derive(Debug, Default)]
struct PoolState {
    queue: VecDeque<DataTask>,
    events: VecDeque<DataEvent>,
    /// The connections whose threads run.
    live: Vec<(u32, Arc<DataStream>)>,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    /// There is a task, or the end.
    has_task: Condvar,
    /// There is an event.
    has_event: Condvar,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DataPool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
    /// Tasks that have been handed in, and not back.
    under_way: usize,
}

impl DataPool {
    /// Starts the thread of a connection. `wish`: whether its parts are compressed.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn add_stream(
        &mut self,
        connection: u32,
        stream: DataStream,
        wish: SiteCompression,
    ) -> io::Result<()> {
        let (shared, stream) = (self.shared.clone(), Arc::new(stream));
        self.shared.state.lock().live.push((connection, stream.clone()));
        let work = move || run_connection(&shared, connection, &stream, wish);
        let thread = thread::Builder::new().name("tatami-data".to_owned()).spawn(work);
        let thread = thread.inspect_err(|_| {
            self.shared.state.lock().live.retain(|(number, _)| *number != connection);
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the number of connections that work.
    pub(crate) fn count_streams(&self) -> usize {
        self.shared.state.lock().live.len()
    }

    /// Returns the number of tasks that have been handed in, and not back.
    pub(crate) fn count_tasks(&self) -> usize {
        self.under_way
    }

    /// Hands in tasks.
    pub(crate) fn submit(&mut self, tasks: impl IntoIterator<Item = DataTask>) {
        let mut state = self.shared.state.lock();
        for task in tasks {
            self.under_way += 1;
            state.queue.push_back(task);
            self.shared.has_task.notify_one();
        }
    }

    /// Waits for the next event; `None` if no task is under way, or none can finish because no
    /// connection is left.
    pub(crate) fn await_event(&mut self) -> Option<DataEvent> {
        let mut state = self.shared.state.lock();
        while self.under_way > 0 {
            if let Some(event) = state.events.pop_front() {
                self.under_way -= match &event {
                    DataEvent::Finished { .. } => 1,
                    DataEvent::Lost { tasks, .. } => tasks.len(),
                };
                return Some(event);
            }
            if state.live.is_empty() {
                return None;
            }
            self.shared.has_event.wait(&mut state);
        }
        // A connection that ended without a task.
        state.events.pop_front()
    }

    /// Ends all connections, and returns the tasks without a reply. Replies that have come are
    /// forgotten: a repetition has the same effect.
    pub(crate) fn end(mut self) -> Vec<DataTask> {
        self.stop();
        let mut state = self.shared.state.lock();
        let mut tasks: Vec<DataTask> = state.queue.drain(..).collect();
        for event in state.events.drain(..) {
            match event {
                DataEvent::Finished { task, .. } => tasks.push(task),
                DataEvent::Lost { tasks: lost, .. } => tasks.extend(lost),
            }
        }
        tasks.sort_by_key(|task| task.seq);
        tasks
    }

    fn stop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.is_closing = true;
            state.live.iter().for_each(|(_, stream)| stream.end());
            self.shared.has_task.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for DataPool {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The life of a connection: until it breaks, or the pool ends.
fn run_connection(
    shared: &PoolShared,
    connection: u32,
    stream: &DataStream,
    wish: SiteCompression,
) {
    let mut sent = VecDeque::new();
    // The error itself is of no use: the session asks ssh for the reason, or repeats the calls.
    let _ = serve_tasks(shared, stream, wish, &mut sent);
    stream.end();
    let mut state = shared.state.lock();
    state.live.retain(|(number, _)| *number != connection);
    state.events.push_back(DataEvent::Lost { connection, tasks: sent.into() });
    shared.has_event.notify_all();
}

/// Takes the next task. Waits for it if nothing is under way on this connection.
fn take_task(shared: &PoolShared, under_way: usize) -> Option<DataTask> {
    let mut state = shared.state.lock();
    loop {
        if state.is_closing {
            return None;
        }
        let task = state.queue.pop_front();
        if task.is_some() || under_way > 0 {
            return task;
        }
        shared.has_task.wait(&mut state);
    }
}

fn serve_tasks(
    shared: &PoolShared,
    stream: &DataStream,
    wish: SiteCompression,
    sent: &mut VecDeque<DataTask>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER, stream);
    let mut calls = CompressedCalls::new(wish);
    loop {
        let next = (sent.len() < DEPTH).then(|| take_task(shared, sent.len())).flatten();
        if let Some(task) = next {
            let (head, payload) = calls.make_call(&task);
            let written = stream.send_both(head, payload);
            sent.push_back(task);
            written?;
            continue;
        }
        let Some(mut task) = sent.pop_front() else { return Ok(()) };
        match calls.receive_reply(&mut input, &mut task) {
            Ok((reply, len)) => {
                let mut state = shared.state.lock();
                let reply = Box::new(reply);
                state.events.push_back(DataEvent::Finished { task, reply, len });
                shared.has_event.notify_all();
            }
            Err(e) => {
                sent.push_front(task);
                return Err(e);
            }
        }
    }
}
