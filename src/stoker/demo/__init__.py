"""Five ways to feed an accelerator, side by side on this machine: what `stoker demo` runs."""
