"""What a broker is told: options, their values, and the settings that they become."""
