//! Defines functions under the names of the C library.

/// Defines functions that take the place of those of the C library.
macro_rules! c_functions {
    ($($(#[$attr:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$attr])*
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? $body
        )*
    };
}
pub(crate) use c_functions;
