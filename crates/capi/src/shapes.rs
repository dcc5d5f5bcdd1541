//! Shapes: `tio_bytes` and its like.

// Each function's pointers come from the caller, as the header says; see the crate's documentation.
#![allow(clippy::missing_safety_doc, non_camel_case_types)]

use crate::guard::{CallFailure, remember_error, run_counted};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tatami_layout::{Shape, ShapeError};
use tatami_tiled::Buffer;

/// `tio_shape`: a shape behind a counted reference.
pub struct tio_shape(Shape);

type ShapePointer = *mut tio_shape;

fn make_shape(shape: impl FnOnce() -> Option<Result<Shape, ShapeError>>) -> ShapePointer {
    match catch_unwind(AssertUnwindSafe(shape)) {
        Ok(Some(Ok(shape))) => Arc::into_raw(Arc::new(tio_shape(shape))).cast_mut(),
        Ok(Some(Err(error))) => {
            remember_error(&error.to_string());
            std::ptr::null_mut()
        }
        Ok(None) => {
            remember_error("a pointer to a shape or an array is NULL");
            std::ptr::null_mut()
        }
        Err(_) => {
            remember_error("an internal defect of libtatami_io (a panic)");
            std::ptr::null_mut()
        }
    }
}

/// Returns the shape behind a pointer.
///
/// # Safety
/// NULL, or a shape that no thread releases meanwhile.
pub(crate) unsafe fn shape_ref<'a>(shape: *const tio_shape) -> Option<&'a Shape> {
    // SAFETY: the caller's.
    unsafe { shape.as_ref() }.map(|shape| &shape.0)
}

/// Returns the elements of an array.
///
/// # Safety
/// `n` elements, or NULL if there are none.
unsafe fn array_slice<'a, T>(at: *const T, n: usize) -> Option<&'a [T]> {
    match (n, at.is_null()) {
        (0, _) => Some(&[]),
        (_, true) => None,
        // SAFETY: the caller's.
        (n, false) => Some(unsafe { std::slice::from_raw_parts(at, n) }),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn tio_bytes(len: u64) -> *mut tio_shape {
    make_shape(|| Some(Shape::bytes(len)))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_contiguous(count: u64, child: *const tio_shape) -> *mut tio_shape {
    // SAFETY: the caller's.
    make_shape(|| unsafe { shape_ref(child) }.map(|child| Shape::contiguous(count, child)))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_hvector(
    count: u64,
    blocklen: u64,
    stride: i64,
    child: *const tio_shape,
) -> *mut tio_shape {
    make_shape(|| {
        // SAFETY: the caller's.
        unsafe { shape_ref(child) }.map(|child| Shape::hvector(count, blocklen, stride, child))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_hindexed(
    n: usize,
    blocklens: *const u64,
    displacements: *const i64,
    child: *const tio_shape,
) -> *mut tio_shape {
    make_shape(|| {
        // SAFETY: the caller's.
        let (lens, disps, child) = unsafe {
            (array_slice(blocklens, n)?, array_slice(displacements, n)?, shape_ref(child)?)
        };
        let blocks: Vec<(u64, i64)> = lens.iter().copied().zip(disps.iter().copied()).collect();
        Some(Shape::hindexed(&blocks, child))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_struct(
    n: usize,
    blocklens: *const u64,
    displacements: *const i64,
    children: *const *const tio_shape,
) -> *mut tio_shape {
    make_shape(|| {
        // SAFETY: the caller's.
        let (lens, disps, children) = unsafe {
            (array_slice(blocklens, n)?, array_slice(displacements, n)?, array_slice(children, n)?)
        };
        let mut blocks = Vec::with_capacity(n);
        for ((len, disp), child) in lens.iter().zip(disps).zip(children) {
            // SAFETY: the caller's.
            blocks.push((*len, *disp, unsafe { shape_ref(*child) }?.clone()));
        }
        Some(Shape::structure(&blocks))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_resized(
    lb: i64,
    extent: i64,
    child: *const tio_shape,
) -> *mut tio_shape {
    // SAFETY: the caller's.
    make_shape(|| unsafe { shape_ref(child) }.map(|child| Shape::resized(lb, extent, child)))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_retain(shape: *const tio_shape) -> *mut tio_shape {
    if !shape.is_null() {
        // SAFETY: it came from Arc::into_raw and has a reference, the caller's.
        unsafe { Arc::increment_strong_count(shape) };
    }
    shape.cast_mut()
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_release(shape: *mut tio_shape) {
    if !shape.is_null() {
        // SAFETY: it came from Arc::into_raw, and the caller gives its reference back.
        unsafe { Arc::decrement_strong_count(shape.cast_const()) };
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_size(shape: *const tio_shape) -> u64 {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.map_or(0, Shape::size)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_lb(shape: *const tio_shape) -> i64 {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.map_or(0, Shape::lb)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_extent(shape: *const tio_shape) -> i64 {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.map_or(0, Shape::extent)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_true_lb(shape: *const tio_shape) -> i64 {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.map_or(0, Shape::true_lb)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_true_extent(shape: *const tio_shape) -> i64 {
    // SAFETY: the caller's.
    unsafe { shape_ref(shape) }.map_or(0, Shape::true_extent)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_shape_is_contiguous(shape: *const tio_shape) -> i32 {
    // SAFETY: the caller's.
    i32::from(unsafe { shape_ref(shape) }.is_some_and(Shape::is_contiguous))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_pack(
    from: *const c_void,
    n: u64,
    mem: *const tio_shape,
    dense: *mut c_void,
    dense_len: usize,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's; `from` is only read.
        let buffer = unsafe { buffer_argument(from.cast_mut(), n, shape_ref(mem)) }?;
        let len = check_room(&buffer, dense.is_null(), dense_len)?;
        if len > 0 {
            // SAFETY: the caller's.
            buffer.gather(0, unsafe { std::slice::from_raw_parts_mut(dense.cast(), len) });
        }
        Ok(len as i64)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tio_unpack(
    dense: *const c_void,
    dense_len: usize,
    to: *mut c_void,
    n: u64,
    mem: *const tio_shape,
) -> i64 {
    run_counted(|| {
        // SAFETY: the caller's.
        let mut buffer = unsafe { buffer_argument(to, n, shape_ref(mem)) }?;
        let len = dense_len.min(usize::try_from(buffer.len()).unwrap_or(usize::MAX));
        check_room(&buffer, dense.is_null(), usize::MAX)?;
        if len > 0 {
            // SAFETY: the caller's.
            buffer.scatter(0, unsafe { std::slice::from_raw_parts(dense.cast(), len) });
        }
        Ok(len as i64)
    })
}

fn check_room(buffer: &Buffer<'_>, null: bool, room: usize) -> Result<usize, CallFailure> {
    let len = usize::try_from(buffer.len()).unwrap_or(usize::MAX);
    match len <= room && !(null && len > 0) {
        true => Ok(len),
        false => Err(CallFailure::Argument("the dense buffer is too small")),
    }
}

/// Returns the caller's buffer: `n` elements of `mem`, or bytes.
///
/// # Safety
/// As for [`Buffer::new`].
pub(crate) unsafe fn buffer_argument<'a>(
    at: *mut c_void,
    n: u64,
    mem: Option<&'a Shape>,
) -> Result<Buffer<'a>, CallFailure> {
    let shape = mem.unwrap_or_else(|| byte_shape());
    // SAFETY: the caller's.
    unsafe { Buffer::new(at.cast(), n, shape) }
        .map_err(|_| CallFailure::Argument("the buffer is NULL or too large"))
}

fn byte_shape() -> &'static Shape {
    static BYTE: std::sync::OnceLock<Shape> = std::sync::OnceLock::new();
    #[allow(clippy::expect_used)] // one byte fits
    BYTE.get_or_init(|| Shape::bytes(1).expect("a byte is no overflow"))
}
