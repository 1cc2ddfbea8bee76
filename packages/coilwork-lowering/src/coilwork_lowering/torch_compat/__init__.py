"""Every use of torch API that is not public, so that versions differ in one place."""
