//! NCCL bindings, opened at run time without linking: sends and receives between GPUs, queued on streams. The bindings of
//! `cudarc` panic if a function is missing in an old NCCL, and these return an error.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libloading::os::unix::Library;

use super::mesh::{Mesh, Watched, lock};
use crate::device::Device;
use crate::driver::{Event, RawStream, open_first};
use crate::error::{Error, Result};

/// Library names. Packages and toolkits install the first one; development packages also install the second one.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

const SUCCESS: u32 = 0;
const IN_PROGRESS: u32 = 7;
/// Value of `ncclUint8`.
const BYTES: c_int = 1;
/// Time limit for operations that are in flight when a rank leaves.
const GRACE: Duration = Duration::from_secs(1);
/// Size of `ncclUniqueId` in bytes.
pub(super) const ID_BYTES: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

/// First fields of `ncclConfig_t` as of NCCL 2.14. Later versions read `version` and use defaults for the other fields.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[derive(Clone, Copy, Debug)]
struct RawComm(*mut c_void);

// SAFETY: NCCL accepts a communicator on any thread, one thread at a time; `Comm` locks it.
unsafe impl Send for RawComm {}

type Transfer =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> u32;

/// NCCL functions that this crate calls.
struct Api {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> u32,
    init: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int, *const Config) -> u32,
    destroy: unsafe extern "C" fn(*mut c_void) -> u32,
    abort: unsafe extern "C" fn(*mut c_void) -> u32,
    async_error: unsafe extern "C" fn(*mut c_void, *mut u32) -> u32,
    error_string: unsafe extern "C" fn(u32) -> *const c_char,
    start: unsafe extern "C" fn() -> u32,
    end: unsafe extern "C" fn() -> u32,
    send: Transfer,
    receive: Transfer,
    _library: Library,
}

fn api() -> Result<&'static Api> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    let missing = |reason: &String| {
        let reason = format!("NCCL 2.14 or later is not installed or not found: {reason}");
        Error::cuda(format!("open {}", NAMES[0]), reason)
    };
    API.get_or_init(open).as_ref().map_err(missing)
}

fn open() -> Result<Api, String> {
    // SAFETY: opening NCCL runs only its own initializers, which are always safe to run; it is never closed.
    let library = unsafe { open_first(&NAMES)? };
    symbols(library).map_err(|error| error.to_string())
}

fn symbols(library: Library) -> Result<Api, libloading::Error> {
    // SAFETY: the types match the declarations in nccl.h since NCCL 2.14.
    unsafe {
        Ok(Api {
            get_unique_id: *library.get(b"ncclGetUniqueId\0")?,
            init: *library.get(b"ncclCommInitRankConfig\0")?,
            destroy: *library.get(b"ncclCommDestroy\0")?,
            abort: *library.get(b"ncclCommAbort\0")?,
            async_error: *library.get(b"ncclCommGetAsyncError\0")?,
            error_string: *library.get(b"ncclGetErrorString\0")?,
            start: *library.get(b"ncclGroupStart\0")?,
            end: *library.get(b"ncclGroupEnd\0")?,
            send: *library.get(b"ncclSend\0")?,
            receive: *library.get(b"ncclRecv\0")?,
            _library: library,
        })
    }
}

impl Api {
    fn check(&self, call: &str, code: u32) -> Result<()> {
        if matches!(code, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: NCCL returns a static string for every code.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Error::cuda(call, text.to_string_lossy()))
    }
}

/// Creates the id by which the ranks of one communicator find each other.
pub(super) fn unique_id() -> Result<[u8; ID_BYTES]> {
    let api = api()?;
    let mut id = UniqueId([0; ID_BYTES]);
    // SAFETY: `id` is valid for writing one id.
    api.check("ncclGetUniqueId", unsafe { (api.get_unique_id)(&mut id) })?;
    Ok(id.0)
}

/// Bytes at an address of this GPU, to send to a rank or to receive from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub rank: usize,
    pub address: u64,
    pub bytes: usize,
}

/// Non-blocking communicator of one GPU. Pending calls are polled, so a rank that has died ends the wait.
pub(super) struct Comm {
    api: &'static Api,
    /// Number of the communicator in this process.
    number: u64,
    device: Arc<Device>,
    raw: Mutex<Option<RawComm>>,
    /// Event after the last queued operation, and the time since which it has been pending after a rank left.
    last: Mutex<(Option<Event>, Option<Instant>)>,
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL on GPU {}", self.device.facts().ordinal)
    }
}

impl Comm {
    /// Creates the communicator. Waits until all ranks have connected.
    pub(super) fn new(
        device: &Arc<Device>,
        mesh: &Mesh,
        id: [u8; ID_BYTES],
        limit: Duration,
    ) -> Result<Arc<Comm>> {
        let api = api()?;
        device.context().set_current()?;
        let config =
            Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21400, blocking: 0 };
        let mut raw = std::ptr::null_mut();
        let (size, rank) = (mesh.size() as c_int, mesh.rank() as c_int);
        // SAFETY: `raw` is valid for writing one communicator; `config` has the size that it states.
        let code = unsafe { (api.init)(&mut raw, size, UniqueId(id), rank, &config) };
        // Before any error is returned: dropping this value aborts the communicator that NCCL has created.
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let comm = Arc::new(Comm {
            api,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            device: Arc::clone(device),
            raw: Mutex::new((!raw.is_null()).then_some(RawComm(raw))),
            last: Mutex::default(),
        });
        api.check("ncclCommInitRankConfig", code)?;
        comm.settle("ncclCommInitRankConfig", mesh, limit)?;
        Ok(comm)
    }

    fn with<R>(&self, work: impl FnOnce(*mut c_void) -> Result<R>) -> Result<R> {
        let raw = lock(&self.raw);
        match *raw {
            Some(RawComm(raw)) => work(raw),
            None => Err(Error::cuda("NCCL", "the communicator was ended after a failure")),
        }
    }

    /// Returns whether a call is still in progress, or its asynchronous error.
    fn pending(&self, call: &str) -> Result<bool> {
        self.with(|raw| {
            let mut state = SUCCESS;
            // SAFETY: the communicator is alive; a place for one code.
            let code = unsafe { (self.api.async_error)(raw, &mut state) };
            self.api.check("ncclCommGetAsyncError", code)?;
            self.api.check(call, state)?;
            Ok(state == IN_PROGRESS)
        })
    }

    /// Polls until a call has completed.
    fn settle(&self, call: &str, mesh: &Mesh, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let pending = self.pending(call);
            // An error that another rank reports is the cause, so it takes precedence.
            mesh.check()?;
            if !pending? {
                return Ok(());
            }
            if start.elapsed() > limit {
                let error = Error::cuda(call, format!("not through after {} s", limit.as_secs()));
                mesh.fail(error.clone());
                return Err(error);
            }
            if start.elapsed() > Duration::from_millis(1) {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Queues all sends and receives as one NCCL group.
    ///
    /// # Safety
    /// The spans are memory of this GPU that stays allocated until the stream has completed. No other queued work
    /// accesses the received spans in the meantime.
    pub(super) unsafe fn exchange(
        &self,
        sends: &[Span],
        receives: &[Span],
        stream: RawStream<'_>,
        mesh: &Mesh,
        limit: Duration,
    ) -> Result<()> {
        self.device.context().set_current()?;
        self.with(|raw| {
            // SAFETY: pairs with `end` below.
            let started = unsafe { (self.api.start)() };
            self.api.check("ncclGroupStart", started)?;
            let both =
                [(self.api.send, "ncclSend", sends), (self.api.receive, "ncclRecv", receives)];
            let mut queued = Ok(());
            for (transfer, call, spans) in both {
                for span in spans.iter().filter(|span| span.bytes > 0) {
                    let (to, peer) = (span.address as *mut c_void, span.rank as c_int);
                    // SAFETY: the caller guarantees spans and stream; the communicator is alive.
                    let code =
                        unsafe { transfer(to, span.bytes, BYTES, peer, raw, stream.as_raw()) };
                    queued = queued.and(self.api.check(call, code));
                }
            }
            // SAFETY: pairs with `start` above.
            let ended = self.api.check("ncclGroupEnd", unsafe { (self.api.end)() });
            queued.and(ended)
        })?;
        self.settle("ncclGroupEnd", mesh, limit)?;
        // The caller waits for each replay of a captured exchange.
        if !stream.is_capturing()? {
            let event = Event::for_order()?;
            event.record(stream)?;
            lock(&self.last).0 = Some(event);
        }
        Ok(())
    }

    /// Destroys the communicator of a rank that no longer waits for other ranks.
    pub(super) fn end(&self) {
        lock(&self.last).0 = None;
        if let Some(RawComm(raw)) = self.take() {
            // SAFETY: `take` returns the communicator once, so it is destroyed once.
            let code = unsafe { (self.api.destroy)(raw) };
            if let Err(error) = self.api.check("ncclCommDestroy", code) {
                tracing::warn!(%error, "a communicator was not ended");
            }
        }
        self.device.recover(self.number);
    }

    fn take(&self) -> Option<RawComm> {
        lock(&self.raw).take()
    }

    /// Aborts the communicator and all its pending operations, unless it has already been destroyed.
    fn end_now(&self) {
        if let Some(RawComm(raw)) = self.take() {
            // SAFETY: `take` returns the communicator once, so it is aborted once.
            let code = unsafe { (self.api.abort)(raw) };
            if let Err(error) = self.api.check("ncclCommAbort", code) {
                tracing::warn!(%error, "a communicator was not ended");
            }
        }
    }
}

impl Drop for Comm {
    /// Aborts the communicator if its group was never created because a rank did not connect.
    fn drop(&mut self) {
        if self.device.context().set_current().is_ok() {
            self.end_now();
        }
    }
}

impl Watched for Comm {
    fn look(&self, left: Option<usize>) -> Result<()> {
        self.pending("NCCL")?;
        let Some(rank) = left else { return Ok(()) };
        // A rank leaves after all of its own work has completed, so operations that are still pending can never
        // complete.
        let mut last = lock(&self.last);
        let (event, since) = &mut *last;
        self.device.context().set_current()?;
        match event.as_ref().map(Event::is_done).transpose()? {
            None | Some(true) => *since = None,
            Some(false) if since.get_or_insert_with(Instant::now).elapsed() > GRACE => {
                let reason = "has left the group".into();
                return Err(Error::Rank { rank, reason });
            }
            Some(false) => {}
        }
        Ok(())
    }

    fn abort(&self, reason: &Error) {
        // Set the error before kernels end, so that a thread that waits for the stream receives it.
        self.device.fail(self.number, reason.clone());
        self.end_now();
    }
}
