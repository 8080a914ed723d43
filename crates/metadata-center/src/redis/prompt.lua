-- The prefill of an owner-less charge is done; says whether there is such a charge.
local id, expire_ms = ARGV[1], tonumber(ARGV[2])

local known = find_unowned(id, expire_ms)
if known then
  local endpoint, prefill = charge_of(known)
  if prefill > 0 then
    redis.call('HSET', UNOWNED, id, endpoint .. '|0')
    change(endpoint, 0, -prefill)
  end
end
write_changes()
return known and 1 or 0
