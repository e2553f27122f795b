"""A broker's configuration: options, their values, and the settings that result from them."""
